"""A real TLS server, on the event loop that the daemons use."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.common.errors import TlsError
from penstock.net.tls import ReloadableContext, wrap_in_tls

__all__ = ["echo_server", "serve"]

LINE_BYTES_MAX = 1 << 24


@asynccontextmanager
async def serve(
    context: ReloadableContext,
    factory: Callable[[], asyncio.BaseProtocol],
    on_failure: Callable[[str, TlsError], None] = lambda _address, _failure: None,
) -> AsyncIterator[int]:
    """Serve `factory`'s protocols over TLS; yields the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(wrap_in_tls(context, factory, on_failure), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def echo_server(context: ReloadableContext) -> AsyncIterator[int]:
    """Send back each line."""

    def new_echo() -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(LINE_BYTES_MAX), _echo_lines)

    async with serve(context, new_echo) as port:
        yield port


async def _echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()
