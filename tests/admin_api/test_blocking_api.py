"""The blocking API client with an nsqd that requires TLS and a token."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.net.tls.certificates import Authority

from penstock.admin_api.blocking_api import ApiReply, BlockingApi
from penstock.admin_api.models import InfoResponse
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.blocking import BlockingHttpClient, HttpStream
from penstock.net.tls import client_context
from penstock.testing.nsqd import NsqdProcess, run_nsqd

TOKEN = "open-sesame"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def nsqd(authority: Authority, tmp_path: Path) -> Iterator[NsqdProcess]:
    identity, tokens = authority.issue("server"), tmp_path / "tokens"
    tokens.write_text(f"publish,consume,read,admin {TOKEN}\n")
    tokens.chmod(0o600)
    flags = (
        "--https-address=127.0.0.1:0",
        "--tls-required=true",
        f"--tls-cert={identity.cert}",
        f"--tls-key={identity.key}",
        f"--http-auth-token-file={tokens}",
    )
    with run_nsqd(*flags) as running:
        yield running


def api(root_ca: str = "", token: str = "") -> BlockingApi:
    http = BlockingHttpClient(
        connect_timeout_seconds=60,
        request_timeout_seconds=60,
        ssl_context=client_context(root_ca=root_ca) if root_ca else None,
    )
    return BlockingApi(http, token)


def test_requests_follow_the_daemon_to_https_with_the_token(
    nsqd: NsqdProcess, authority: Authority
) -> None:
    base, allowed = f"http://{nsqd.http_address}", api(str(authority.root_ca), TOKEN)

    assert allowed.get_json(base, "/info", InfoResponse).tcp_port
    assert 200 == allowed.post(base, "/pub", b"hidden", topic="orders").status
    with allowed.stream(base, "/topic/messages", "application/json", topic="orders") as answer:
        assert isinstance(answer, HttpStream)
        assert b'"body":"hidden"' in answer.read()


def test_nsqd_refuses_requests_without_a_token(nsqd: NsqdProcess, authority: Authority) -> None:
    base, denied = f"http://{nsqd.http_address}", api(str(authority.root_ca))

    answer = denied.get(base, "/topic/log", topic="orders")
    assert (401, "UNAUTHORIZED") == (answer.status, answer.error_code)
    with denied.stream(base, "/topic/messages", "application/json", topic="orders") as streamed:
        assert isinstance(streamed, ApiReply)
        assert 401 == streamed.status


def test_an_unknown_certificate_authority_is_an_error(nsqd: NsqdProcess) -> None:
    with pytest.raises(HttpRequestError, match="certificate verify failed"):
        api(token=TOKEN).get(f"http://{nsqd.http_address}", "/info")


def test_consecutive_requests_and_streams_share_a_connection(
    nsqd: NsqdProcess, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, connected_ports = socket.create_connection, []

    def count(address: tuple[str, int], *args: Any) -> socket.socket:
        connected_ports.append(address[1])
        return connect(address, *args)

    monkeypatch.setattr(socket, "create_connection", count)
    base, allowed = f"http://{nsqd.http_address}", api(str(authority.root_ca), TOKEN)
    for body in (b"one", b"two"):
        assert 200 == allowed.post(base, "/pub", body, topic="orders").status
        with allowed.stream(base, "/topic/messages", "application/json", topic="orders") as answer:
            assert isinstance(answer, HttpStream)
            assert body in b"".join(iter(answer.read, b""))
    allowed.close()

    assert 2 == len(connected_ports)  # one to the HTTP port, one to the HTTPS port
    assert 2 == len(set(connected_ports))
