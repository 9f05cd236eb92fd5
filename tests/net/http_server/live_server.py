"""An HttpServer for the length of a test: on uvloop, in its own thread, behind a real socket."""

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
from penstock.net.http_server import Gate, HttpServer, Limits, Route, Router

DATE = b"Date: Tue, 15 Nov 1994 08:12:31 GMT"

_DATE = re.compile(rb"Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")

# Longer than anything here takes, shorter than a test may.
PATIENCE_SECONDS = 60

T = TypeVar("T")


@contextmanager
def live_server(
    routes: Iterable[Route],
    *,
    limits: Limits | None = None,
    gates: tuple[Gate, ...] = (),
    unix_path: Path | None = None,
) -> Iterator["LiveServer"]:
    """Serves `routes` until the block is left, then stops."""
    live = LiveServer(routes, limits, gates, unix_path)
    live.thread.start()
    try:
        assert live.ready.wait(PATIENCE_SECONDS)
        yield live
    finally:
        live.loop.call_soon_threadsafe(live.over.set)
        live.thread.join(PATIENCE_SECONDS)
        assert not live.thread.is_alive()
        assert [] == live.loop_errors


class LiveServer:
    """What a test can do with the server."""

    def __init__(
        self,
        routes: Iterable[Route],
        limits: Limits | None,
        gates: tuple[Gate, ...],
        unix_path: Path | None,
    ) -> None:
        self.log_lines: list[str] = []
        self.loop_errors: list[dict[str, Any]] = []  # what no code of ours has caught
        self.address: tuple[str, int] | str = ""
        self.server: HttpServer
        self.loop: asyncio.AbstractEventLoop
        self.over: asyncio.Event
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: uvloop.run(self._run()), daemon=True)
        self._routes = routes
        self._limits = limits
        self._gates = gates
        self._unix_path = unix_path

    async def _run(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        log = Logger("", LogLevel.DEBUG, write=self.log_lines.append)
        self.server = HttpServer(
            Router(self._routes), log=log, limits=self._limits, gates=self._gates
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
        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_SECONDS)

    def connect(self) -> "RawHttp":
        """A new connection."""
        return RawHttp(self.address)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """The server does nothing meanwhile: what is sent has come when it goes on."""
        awake = threading.Event()
        self.loop.call_soon_threadsafe(awake.wait, PATIENCE_SECONDS)
        try:
            yield
        finally:
            awake.set()


class RawHttp:
    """A client that sends and receives bytes, and knows of HTTP only what a date looks like."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(PATIENCE_SECONDS)
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
        """Says that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only if the server closes; every date in them is `DATE`."""
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
        """Fails unless the server has nothing more to say."""
        assert b"" == self.socket.recv(1)


def crlf(text: str) -> bytes:
    """A head as it is written in a test: its lines, indented or not, without the line ends.

    Adds the empty line.
    """
    lines = [line.strip(" ") for line in text.strip("\n ").splitlines()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
