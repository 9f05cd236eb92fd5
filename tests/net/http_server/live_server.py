"""An HttpServer for a test: on uvloop, in its own thread, with a real socket."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from penstock.common.logs import Logger, LogLevel
from penstock.net.http_server import HttpLimits, HttpServer, Middleware, Route, Router

DATE = b"Date: Tue, 15 Nov 1994 08:12:31 GMT"

_DATE = re.compile(rb"Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")

# Longer than anything here takes, shorter than the timeout of a test.
TIMEOUT_SECONDS = 60

T = TypeVar("T")


@contextmanager
def live_server(
    routes: Iterable[Route],
    *,
    limits: HttpLimits | None = None,
    middleware: tuple[Middleware, ...] = (),
    unix_path: Path | None = None,
) -> Iterator["LiveServer"]:
    """Serves `routes` until the block is left, then stops."""
    live = LiveServer(routes, limits, middleware, unix_path)
    live.thread.start()
    try:
        assert live.ready.wait(TIMEOUT_SECONDS)
        yield live
    finally:
        live.loop.call_soon_threadsafe(live.over.set)
        live.thread.join(TIMEOUT_SECONDS)
        assert not live.thread.is_alive()
        assert [] == live.loop_errors


class LiveServer:
    """A running server, as tests use it."""

    def __init__(
        self,
        routes: Iterable[Route],
        limits: HttpLimits | None,
        middleware: tuple[Middleware, ...],
        unix_path: Path | None,
    ) -> None:
        self.log_lines: list[str] = []
        self.loop_errors: list[dict[str, Any]] = []  # uncaught exceptions
        self.address: tuple[str, int] | str = ""
        self.server: HttpServer
        self.loop: asyncio.AbstractEventLoop
        self.over: asyncio.Event
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self._routes = routes
        self._limits = limits
        self._middleware = middleware
        self._unix_path = unix_path

    async def _run(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        log = Logger("", LogLevel.DEBUG, write=self.log_lines.append)
        self.server = HttpServer(
            Router(self._routes), log=log, limits=self._limits, middleware=self._middleware
        )
        factory = self.server.new_connection
        if self._unix_path is None:
            listener = await self.loop.create_server(factory, "127.0.0.1", 0)
            self.address = listener.sockets[0].getsockname()
        else:
            listener = await self.loop.create_unix_server(factory, self._unix_path)
            self.address = str(self._unix_path)
        self.ready.set()
        await self.over.wait()
        listener.close()
        await self.server.stop(timeout_seconds=1)

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `call` on the server's loop, and waits for it."""
        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(TIMEOUT_SECONDS)

    def connect(self) -> "RawHttp":
        """A new connection."""
        return RawHttp(self.address)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Blocks the server's loop, so that everything sent in the block arrives in one read."""
        unblocked = threading.Event()
        self.loop.call_soon_threadsafe(unblocked.wait, TIMEOUT_SECONDS)
        try:
            yield
        finally:
            unblocked.set()


class RawHttp:
    """A client that sends and receives raw bytes, and only normalises dates."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends `data` at once."""
        self.socket.sendall(data)

    def send_bytewise(self, data: bytes) -> None:
        """Sends `data` in as many packets as it has bytes."""
        for index in range(len(data)):
            self.socket.sendall(data[index : index + 1])

    def end(self) -> None:
        """Closes the sending side."""
        self.socket.shutdown(socket.SHUT_WR)

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only if the server closes; dates are replaced by `DATE`."""
        data = b""
        while len(data) < size and (piece := self.socket.recv(size - len(data))):
            data += piece
        return _DATE.sub(DATE, data)

    def read_all(self) -> bytes:
        """Everything until the server closes."""
        data = b""
        while piece := self.socket.recv(1 << 20):
            data += piece
        return _DATE.sub(DATE, data)

    def expect(self, expected: bytes) -> None:
        """Fails unless exactly `expected` comes next."""
        assert expected == self.read(len(expected))

    def expect_close(self) -> None:
        """Fails unless the server closes without sending more."""
        assert b"" == self.socket.recv(1)


def crlf(text: str) -> bytes:
    """The bytes of a head: strips indentation, and adds CRLF to each line and an empty line."""
    lines = [line.strip(" ") for line in text.strip("\n ").splitlines()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
