"""A server that sends given bytes, HTTP or not."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# How long a server hangs: longer than any test waits.
FOR_EVER_SECONDS = 60


class ScriptedServer:
    """Sends the next of `answers` on each connection, and the last one on all others."""

    def __init__(self, answers: tuple[bytes, ...], *, hangs: bool, repeats: bool) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self._answers = answers
        self._hangs = hangs
        self._repeats = repeats

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads a request, answers, and closes the connection unless the server hangs."""
        try:
            self.requests.append(await reader.read(65536))
            answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
            writer.write(answer)
            await writer.drain()
            while self._repeats:
                writer.write(answer)
                await writer.drain()
            if self._hangs:
                await asyncio.sleep(FOR_EVER_SECONDS)
        except ConnectionError:
            pass  # The client closed the connection, as it should.
        finally:
            writer.close()


@asynccontextmanager
async def scripted_server(
    *answers: bytes,
    hangs: bool = False,
    repeats: bool = False,
    host: str = "127.0.0.1",
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedServer]:
    """Serves on a free port inside the block."""
    script = ScriptedServer(answers or (b"",), hangs=hangs, repeats=repeats)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(script.serve(reader, writer))
        connections.add(task)
        await asyncio.wait([task])
        writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=context)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
