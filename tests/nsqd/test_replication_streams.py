"""Connections between the members of a replicated node."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event
from typing import cast
from unittest.mock import Mock

import msgspec
import pytest
import uvloop
from tests.replication.test_leader import Node, address_of

from penstock.common.errors import StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.nsqd.following import Following
from penstock.nsqd.replication_streams import FollowerStream, LeaderStream
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.follower import Follower
from penstock.replication.leader import STREAM_VERSION, FollowerLink
from penstock.replication.stream import (
    FormatSettings,
    Hello,
    OpenTopic,
    Welcome,
    encode_message,
)
from penstock.storage import Files, RealFiles
from penstock.storage.data_dir import verify_data_path
from penstock.storage.layout import Issue

LOG = Logger("", LogLevel.FATAL)


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


class AcceptedStream(FollowerStream):
    """The leader's end of a connection."""

    def __init__(self) -> None:
        super().__init__(Node().leader, LOG)
        self.has_ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.has_ended.set()


def run_with_connection(
    test: Callable[[AcceptedStream, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    """Run a test with both ends of a connection: a leader's, and one that sends what it likes."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[AcceptedStream] = loop.create_future()

        def accept() -> AcceptedStream:
            stream = AcceptedStream()
            accepted.set_result(stream)
            return stream

        server = await loop.create_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        stream = await accepted
        await test(stream, reader, writer)
        await stream.has_ended.wait()
        writer.transport.abort()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_file_that_cannot_be_read_ends_only_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(side_effect=StorageError("input/output error"))
    monkeypatch.setattr(FollowerLink, "send_more", failing)

    async def resume(
        stream: AcceptedStream, reader: asyncio.StreamReader, _: asyncio.StreamWriter
    ) -> None:
        stream.pause_writing()
        stream.resume_writing()
        assert b"" == await reader.read()

    run_with_connection(resume)


def test_connection_of_a_follower_that_does_not_read_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.nsqd.replication_streams._CLOSE_SECONDS", 0.01)

    async def close(
        stream: AcceptedStream, _: asyncio.StreamReader, __: asyncio.StreamWriter
    ) -> None:
        stream.transport.write(bytes(64 * 1024 * 1024))
        stream.close()
        await stream.has_ended.wait()

    run_with_connection(close)


def test_message_of_an_unknown_sender_must_be_small() -> None:
    async def send(
        _: AcceptedStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write((1024 * 1024).to_bytes(4) + b"x")
        assert b"" == await reader.read()

    run_with_connection(send)


def test_sender_that_does_not_introduce_itself_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.nsqd.replication_streams._HELLO_SECONDS", 0.01)

    async def wait(
        stream: AcceptedStream, _: asyncio.StreamReader, __: asyncio.StreamWriter
    ) -> None:
        await stream.has_ended.wait()

    run_with_connection(wait)


def test_copy_is_opened_again_if_an_fsync_fails_after_its_connection_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member has stopped following, to take over, while the disk failed."""
    has_begun, may_end = Event(), Event()

    def fail(_: CopyFsync) -> None:
        has_begun.set()
        may_end.wait(60)
        raise OSError(errno.EIO, "input/output error")

    copies: list[CopiedDataPath] = []
    writers: list[asyncio.StreamWriter] = []
    opened = CopiedDataPath.open

    def open_copy(path: str, files: Files, report: Callable[[Issue], None]) -> CopiedDataPath:
        copies.append(opened(path, files, report))
        return copies[-1]

    monkeypatch.setattr(CopyFsync, "run", fail)
    monkeypatch.setattr(CopiedDataPath, "open", open_copy)

    async def lead(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_message(Welcome(1, must_sync=True)))
        writer.write(encode_message(OpenTopic(1, "t", bytes(16))))
        writers.append(writer)

    async def run() -> None:
        server = await asyncio.start_server(lead, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        following = Following(
            str(tmp_path),
            LOG,
            lambda epoch: Hello("shop", "n", "uuid", "b", "1", epoch, "", STREAM_VERSION),
            on_damage=lambda: None,
            sync_seconds=1.0,
            silence_seconds=60.0,
            tls=None,
        )
        leader = msgspec.structs.replace(address_of("a"), broadcast_address=host, tcp_port=port)
        following.follow(leader, 1)
        assert await asyncio.to_thread(has_begun.wait, 60)
        following.stop()
        may_end.set()
        await following.close()
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()

    asyncio.run(asyncio.wait_for(run(), 120))

    assert copies[0].has_failed
    found = verify_data_path(str(tmp_path), RealFiles())
    assert found is not None
    assert found.is_open, "the next start must treat the copy as after a crash"
