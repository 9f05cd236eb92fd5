"""Opening the sockets that a daemon serves on."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

from penstock.common.addresses import has_port
from penstock.common.errors import ConfigError

__all__ = ["Listener", "listen", "peer_address"]


class Listener:
    """A listening socket; `address` is where it really listens, its port chosen by now."""

    def __init__(self, server: asyncio.Server, address: str, port: int = -1) -> None:
        self._server = server
        self.address = address
        self.port = port
        """The TCP port; -1 for a unix socket."""

    def close(self) -> None:
        """Stops accepting, and removes a unix socket's file."""
        self._server.close()
        if self.port == -1:
            with suppress(FileNotFoundError):
                os.unlink(self.address)


async def listen(
    address: str, factory: Callable[[], asyncio.BaseProtocol], *, bare_name_is_path: bool = False
) -> Listener:
    """Listen at host:port, or at the path of a unix socket, which contains a slash. With
    `bare_name_is_path`, an address with neither a colon nor a slash is a path too; without it, that
    raises ConfigError, because the port is missing.

    If `factory` raises, the loop's exception handler is called, and only that connection is closed.
    """
    factory = _contained(factory)
    host, colon, port = address.rpartition(":")
    try:
        if "/" in address or (not colon and bare_name_is_path):
            return await _listen_unix(address, factory)
        if not colon:
            raise ConfigError(f"listen ({address}) failed - missing port in address")
        if not has_port(address):
            raise ConfigError(f"listen ({address}) failed - {port} is no port")
        return await _listen_tcp(host.strip("[]") or "0.0.0.0", int(port), factory)
    except OSError as failure:
        # The loop puts words of its own before the reason.
        reason = str(failure.strerror or failure).rpartition(": ")[2]
        raise ConfigError(f"listen ({address}) failed - {reason}") from failure


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The other end's host:port, as Go prints it; `@` on a unix socket, where it has no name."""
    match transport.get_extra_info("peername"):
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "@"


def _contained(
    factory: Callable[[], asyncio.BaseProtocol],
) -> Callable[[], asyncio.BaseProtocol]:
    """A factory that never raises: after an exception, uvloop accepts no more connections."""
    loop, refusal = asyncio.get_running_loop(), _Refusal()

    def make() -> asyncio.BaseProtocol:
        try:
            return factory()
        except Exception as error:  # noqa: BLE001 (given to the loop's handler, which logs it)
            loop.call_exception_handler({"message": "accepting", "exception": error})
            return refusal

    return make


class _Refusal(asyncio.Protocol):
    """Closes connections that cannot be served. It has no state, so one instance is shared."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _listen_tcp(
    host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
) -> Listener:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, host, port, backlog=4096)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    name = f"[{bound_host}]" if ":" in bound_host else bound_host
    return Listener(server, f"{name}:{bound_port}", bound_port)


async def _listen_unix(path: str, factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
    _remove_stale_socket(path)
    loop = asyncio.get_running_loop()
    return Listener(await loop.create_unix_server(factory, path, backlog=4096), path)


def _remove_stale_socket(path: str) -> None:
    """A socket file outlives a killed process. One that somebody still answers is left alone, and
    so is anything that is not a socket: listening then fails, as it should. Raises OSError."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            # The loop would not mind, and take it away from whoever answers.
            raise OSError(errno.EADDRINUSE, "address already in use")
