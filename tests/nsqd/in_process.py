"""An nsqd in the event loop of the test, for tests that patch or count something inside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.common.logs import Logger, LogLevel
from penstock.nsqd.daemon import Nsqd, ReplicationHooks
from penstock.nsqd.options import NsqdOptions

__all__ = ["connected", "serving"]


@asynccontextmanager
async def serving(
    data_path: Path, *, replication: ReplicationHooks | None = None, **options: Any
) -> AsyncIterator[Nsqd]:
    """Runs nsqd on free ports of 127.0.0.1."""
    addresses = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    all_options = NsqdOptions(data_path=str(data_path), **{**addresses, **options})
    log = Logger("", LogLevel.ERROR)
    nsqd = Nsqd(all_options, log, stop=lambda: None, replication=replication)
    await nsqd.start()
    try:
        yield nsqd
    finally:
        await nsqd.stop()


@asynccontextmanager
async def connected(
    address: str, opening: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to `address`, on which `opening` was sent."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(opening)
    try:
        yield reader, writer
    finally:
        writer.close()
