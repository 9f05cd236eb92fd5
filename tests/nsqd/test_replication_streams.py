"""Connections between the members of a replicated node."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import uvloop

from penstock.nsqd.replication_streams import LeaderStream
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.follower import Follower
from penstock.replication.leader import STREAM_VERSION
from penstock.replication.stream import FormatSettings, Hello, Welcome, encode_message
from penstock.storage import RealFiles


def test_an_fsync_that_ends_after_its_connection_is_not_acknowledged(tmp_path: Path) -> None:
    """The leader was killed while a follower fsynced what it had received."""
    hello = Hello("shop", "n1", "uuid", "b", "1", 1, "", STREAM_VERSION)
    fsyncs: list[Callable[[OSError | None], None]] = []

    async def run() -> Follower:
        loop = asyncio.get_running_loop()
        is_syncing = asyncio.Event()

        async def lead(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_message(Welcome(1, must_sync=True)))
            writer.write(encode_message(FormatSettings(1, 0)))
            await is_syncing.wait()
            writer.transport.abort()

        def begin_fsync(_: CopyFsync, done: Callable[[OSError | None], None]) -> None:
            fsyncs.append(done)
            is_syncing.set()

        def new_follower(stream: LeaderStream) -> Follower:
            copy = CopiedDataPath.open(str(tmp_path), RealFiles(), lambda _: None)
            return Follower(copy, hello, stream, begin_fsync, stream.fail, lambda: None)

        server = await asyncio.start_server(lead, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        _, stream = await loop.create_connection(lambda: LeaderStream(new_follower), host, port)
        await asyncio.wait([stream.closed])
        server.close()
        assert stream.follower is not None
        fsyncs.pop()(None)
        return stream.follower

    follower = uvloop.run(run())

    assert (1, 0) == (follower.position, follower.acked_position)
