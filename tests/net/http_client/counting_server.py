"""An HTTP server that keeps connections open and counts them."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSE = b"$CLOSE"


class CountingServer:
    """Answers request n with `answers[n]`, and all later ones with the last of them; for CLOSE, the
    server closes the connection without a response. It also closes a connection after
    `requests_max` requests: at once, or when the next request arrives."""

    def __init__(
        self, answers: tuple[bytes, ...], requests_max: int, *, waits_for_one_more: bool
    ) -> None:
        self.port = 0
        self.connections = 0
        self.open_connections = 0
        self.requests: list[bytes] = []
        self._answers = answers
        self._requests_max = requests_max
        self._waits_for_one_more = waits_for_one_more

    @property
    def counts(self) -> tuple[int, int]:
        """Accepted connections, and complete requests."""
        return self.connections, len(self.requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            for _ in range(self._requests_max):
                await self._respond(reader, writer)
            if self._waits_for_one_more:
                await reader.read(1)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client or the answer CLOSE has ended the connection.
        finally:
            self.open_connections -= 1
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if length:
            await reader.readexactly(int(length[1]))
        self.requests.append(head)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if answer == CLOSE:
            raise ConnectionError
        path = head.split()[1]
        writer.write(answer.replace(b"$PATH", path).replace(b"$SIZE", b"%d" % len(path)))


@asynccontextmanager
async def counting_server(
    *answers: bytes,
    requests_max: int = 1000,
    waits_for_one_more: bool = False,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[CountingServer]:
    """Serves on a free port inside the block. `$PATH` in an answer is replaced by the path of the
    request, and `$SIZE` by its length."""
    counting = CountingServer(answers or (OK,), requests_max, waits_for_one_more=waits_for_one_more)
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(counting.serve(reader, writer))
        connections[task] = writer
        await asyncio.wait([task])

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    counting.port = server.sockets[0].getsockname()[1]
    try:
        yield counting
    finally:
        server.close()
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        closed = [writer.wait_closed() for writer in connections.values()]
        await asyncio.gather(*connections, *closed, return_exceptions=True)
        await server.wait_closed()
