"""Addresses that a daemon can and cannot listen on."""

import asyncio
import socket
from pathlib import Path

import pytest
import uvloop

from penstock.common.errors import ConfigError
from penstock.net.listener import listen


def listen_once(address: str) -> str:
    """Listen and stop; returns the address."""

    async def once() -> str:
        listener = await listen(address, asyncio.Protocol)
        listener.close()
        return listener.address

    return uvloop.run(once())


def test_the_socket_of_a_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)

    assert path == listen_once(path)
    assert not Path(path).exists()


def test_a_unix_socket_in_use_is_not_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as occupant, socket.socket(socket.AF_UNIX) as client:
        occupant.bind(path)
        occupant.listen()

        with pytest.raises(ConfigError, match="failed - address already in use"):
            listen_once(path)
        client.connect(path)


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep me")

    with pytest.raises(ConfigError, match="is already in use"):
        listen_once(str(path))

    assert "keep me" == path.read_text()


def test_an_address_without_a_port_is_no_unix_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"^listen \(4160\) failed - missing port in address$"):
        listen_once("4160")
    assert [] == list(tmp_path.iterdir())
    assert "./4160" == listen_once("./4160")
