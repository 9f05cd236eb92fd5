"""Listening sockets of a daemon, and settings of the accepted ones."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

from penstock.common.addresses import has_port
from penstock.common.errors import ConfigError

__all__ = ["Listener", "enable_keepalive", "listen", "peer_address"]

# As in Go's servers: a peer that does not answer the probes is given up after about two minutes.
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 9


class Listener:
    """A listening socket; `address` contains the actual port if 0 was requested."""

    def __init__(self, server: asyncio.Server, address: str, port: int = -1) -> None:
        self._server = server
        self.address = address
        self.port = port
        """The TCP port; -1 for a unix socket."""

    def close(self) -> None:
        """Stop accepting; removes the file of a unix socket."""
        self._server.close()
        if self.port == -1:
            with suppress(FileNotFoundError):
                os.unlink(self.address)


async def listen(
    address: str, factory: Callable[[], asyncio.BaseProtocol], *, bare_name_is_path: bool = False
) -> Listener:
    """Listen at host:port, or at the path of a unix socket, which contains a slash. An address
    without colon and slash is a path if `bare_name_is_path`; otherwise it raises ConfigError,
    because the port is missing.

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
        # The event loop puts its own text before the reason.
        reason = str(failure.strerror or failure).rpartition(": ")[2]
        raise ConfigError(f"listen ({address}) failed - {reason}") from failure


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The peer's host:port as Go prints it; `@` for a unix socket."""
    match transport.get_extra_info("peername"):
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "@"


def enable_keepalive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keep-alive, which detects peers that vanished; does nothing on unix sockets."""
    connection = transport.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; other systems use their own intervals
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _contained(
    factory: Callable[[], asyncio.BaseProtocol],
) -> Callable[[], asyncio.BaseProtocol]:
    """A factory that never raises: after an exception, uvloop accepts no more connections."""
    loop, rejecting = asyncio.get_running_loop(), _RejectingProtocol()

    def make() -> asyncio.BaseProtocol:
        try:
            return factory()
        except Exception as error:  # noqa: BLE001 (given to the loop's handler, which logs it)
            loop.call_exception_handler({"message": "accepting", "exception": error})
            return rejecting

    return make


class _RejectingProtocol(asyncio.Protocol):
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
    """Remove a socket file that a killed process left. A file that is not a socket is kept, so
    that listening fails. Raises OSError if a process still listens on the socket."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            # The event loop would replace the socket of the running process.
            raise OSError(errno.EADDRINUSE, "address already in use")
