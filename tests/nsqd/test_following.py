"""A follower connects to the leader."""

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.common.logs import Logger, LogLevel
from penstock.nsqd import following
from penstock.nsqd.following import Following
from penstock.replication.leader import STREAM_VERSION
from penstock.replication.node_record import MemberAddress
from penstock.replication.stream import MAGIC, Hello

TIMEOUT_SECONDS = 30


def address(member: str, port: int) -> MemberAddress:
    return MemberAddress(
        member=member,
        incarnation="1",
        session=member,
        broadcast_address="127.0.0.1",
        tcp_port=port,
        http_port=1,
        version="1",
    )


def hello(epoch: int) -> Hello:
    return Hello("shop", "n", "uuid", "c", "1", epoch, "", STREAM_VERSION)


def test_lost_machine_does_not_delay_the_connection_to_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_CONNECT_SECONDS", 3600)

    async def run() -> None:
        greeted = asyncio.Event()

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert MAGIC == await reader.readexactly(len(MAGIC))
            greeted.set()
            await reader.read()
            writer.close()

        follower = Following(
            str(tmp_path),
            Logger("", LogLevel.FATAL),
            hello,
            on_damage=lambda: None,
            sync_seconds=1,
            silence_seconds=10,
            tls=None,
        )
        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        with socket.socket() as lost, socket.socket() as first:
            # The kernel drops further connections, as if the machine did not answer.
            lost.bind(("127.0.0.1", 0))
            lost.listen(0)
            first.connect(lost.getsockname())
            follower.follow(address("a", lost.getsockname()[1]), 1)
            await asyncio.sleep(0.1)
            assert follower.last_contact_seconds is None
            follower.follow(address("b", server.sockets[0].getsockname()[1]), 2)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await greeted.wait()
            await follower.close()
        server.close()

    asyncio.run(run())
