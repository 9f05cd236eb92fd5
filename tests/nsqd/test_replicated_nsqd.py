"""An nsqd whose data path is replicated answers, delivers and shows only confirmed messages."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.broker.confirmation import IgnoringObserver, ScriptedConfirmation
from tests.nsqd.in_process import connected, serving

from penstock.common.errors import NotInSyncError
from penstock.nsqd.daemon import Nsqd, ReplicationHooks
from penstock.protocol import frames
from penstock.replication.status import ReplicationStatus
from penstock.testing.waiting import TIMEOUT_SECONDS

OK_FRAME = frames.response(b"OK")
STATUS = ReplicationStatus(
    cluster="shop",
    node="n1",
    member="a",
    role="leading",
    etcd_connected=True,
    replicas=3,
    min_in_sync=2,
)


class Bench:
    """A replicated nsqd, and its clients."""

    def __init__(self, nsqd: Nsqd, confirmation: ScriptedConfirmation) -> None:
        self.nsqd = nsqd
        self.confirmation = confirmation

    def confirm(self, count: int | None = None) -> None:
        self.confirmation.confirm(self.nsqd.broker.topics["t"], count)

    async def http(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body of a response."""
        assert self.nsqd.http is not None
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async with connected(self.nsqd.http.address, request) as (reader, _):
                answer = await reader.read()
        head_bytes, _, content = answer.partition(b"\r\n\r\n")
        if b"chunked" in head_bytes:
            content = b"".join(content.split(b"\r\n")[1::2])
        return int(head_bytes.split()[1]), content

    async def json(self, target: str) -> Any:
        status, body = await self.http("GET", target)
        assert status == 200, body
        return json.loads(body)

    async def stored(self, count: int) -> None:
        """Waits until nsqd has stored this many messages."""
        topics = self.nsqd.broker.topics
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while "t" not in topics or topics["t"].message_count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def client(
        self, commands: bytes
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        assert self.nsqd.tcp is not None
        async with connected(self.nsqd.tcp.address, b"  V2" + commands) as streams:
            yield streams


def on_loop(
    data_path: Path, test: Callable[[Bench], Coroutine[Any, Any, None]], *, epoch: int = 1
) -> None:
    async def run() -> None:
        confirmation = ScriptedConfirmation()
        hooks = ReplicationHooks(
            epoch=epoch,
            may_lack_messages=False,
            observer=IgnoringObserver(),
            confirmation=confirmation,
            when_replicated=lambda done: done(None),
            new_stream=asyncio.Protocol,
            on_metadata=lambda _: None,
            status=lambda: STATUS,
        )
        async with serving(data_path, replication=hooks) as nsqd:
            await test(Bench(nsqd, confirmation))

    asyncio.run(run())


def pub(body: bytes) -> bytes:
    return b"PUB t\n" + len(body).to_bytes(4) + body


async def read_exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await reader.readexactly(size)


def test_tcp(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        consumer = bench.client(b"SUB t c\nRDY 10\n")
        async with bench.client(pub(b"one")) as (producer, writer), consumer as (reader, _):
            assert await read_exactly(reader, len(OK_FRAME)) == OK_FRAME
            await bench.stored(1)
            mpub = (1).to_bytes(4) + (3).to_bytes(4) + b"two"
            writer.write(b"MPUB t\n" + len(mpub).to_bytes(4) + mpub)
            await bench.stored(2)
            for body in (b"one", b"two"):
                bench.confirm(1)
                assert await read_exactly(producer, len(OK_FRAME)) == OK_FRAME
                size = int.from_bytes(await read_exactly(reader, 4))
                assert (await read_exactly(reader, size)).endswith(body)

            bench.confirmation.refusal = NotInSyncError("1 of 3 members is in sync")
            writer.write(pub(b"three"))
            size = int.from_bytes(await read_exactly(producer, 4))
            error = await read_exactly(producer, size)
            assert error.endswith(b"E_PUB_FAILED PUB failed not in sync: 1 of 3 members is in sync")

    on_loop(tmp_path, test)


def test_http_publishes(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        publish = asyncio.create_task(bench.http("POST", "/pub?topic=t", b"one"))
        multi = asyncio.create_task(bench.http("POST", "/mpub?topic=t", b"two\nthree"))
        defer = asyncio.create_task(bench.http("POST", "/pub?topic=t&defer=1000", b"four"))
        await bench.stored(4)
        assert not publish.done()
        bench.confirm()
        assert [(200, b"OK")] * 3 == [await each for each in (publish, multi, defer)]

        bench.confirmation.refusal = NotInSyncError("1 of 3 members is in sync")
        assert await bench.http("POST", "/pub?topic=t", b"five") == (
            503,
            b'{"message":"NOT_IN_SYNC"}',
        )
        assert 4 == bench.nsqd.broker.topics["t"].message_count

    on_loop(tmp_path, test)


def test_history_catalog_and_stats_end_at_the_high_watermark(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        topic = bench.nsqd.broker.topic("t")
        topic.channel("c")
        topic.publish([b"one", b"two"])
        topic.publish([b"three"])
        first = topic.log.first_seq
        for visible in (0, 1, 3):
            bench.confirmation.confirm(topic, visible - (topic.log.high_watermark - first))
            (catalog,) = (await bench.json("/topics/log"))["topics"]
            assert (first + visible, first + 3) == (catalog["high_watermark"], catalog["next_seq"])
            assert first + visible == (await bench.json("/topic/log?topic=t"))["next_seq"]
            status, lines = await bench.http("GET", "/topic/messages?topic=t")
            bodies = [json.loads(line)["body"] for line in lines.splitlines()]
            assert (200, ["one", "two", "three"][:visible]) == (status, bodies)
            stats = (await bench.json("/stats?format=json&topic=t"))["topics"][0]
            assert (3, visible) == (stats["message_count"], stats["channels"][0]["depth"])
            too_high = f"/topic/messages?topic=t&to={first + visible + 1}"
            error = {"message": "SEQ_TOO_HIGH", "next_seq": first + visible}
            status, body = await bench.http("GET", too_high)
            assert (400, error) == (status, json.loads(body))

    on_loop(tmp_path, test)


def test_history_and_catalog_wait_for_messages_of_earlier_runs(tmp_path: Path) -> None:
    async def store(bench: Bench) -> None:
        topic = bench.nsqd.broker.topic("t")
        topic.publish([b"one", b"two"])
        bench.confirm()

    async def read(bench: Bench) -> None:
        topic = bench.nsqd.broker.topics["t"]
        first = topic.log.first_seq
        refused = (503, b'{"message":"NOT_CONFIRMED"}')
        targets = ("/topics/log", "/topic/messages?topic=t", f"/topic/messages?topic=t&to={first}")
        for target in targets:
            assert refused == await bench.http("GET", target)
        bench.confirmation.confirm(topic, 1)
        for target in targets:
            assert refused == await bench.http("GET", target)
        bench.confirm()
        for target in targets:
            assert 200 == (await bench.http("GET", target))[0]
        (catalog,) = (await bench.json("/topics/log"))["topics"]
        assert first + 2 == catalog["high_watermark"]

    on_loop(tmp_path, store)
    on_loop(tmp_path, read, epoch=2)


def test_following_readers_and_waiting_requests(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        topic = bench.nsqd.broker.topic("t")
        topic.publish([b"one", b"two"])
        first = topic.log.first_seq
        token = (await bench.json("/topics/log"))["version"]
        waiting = asyncio.create_task(bench.json(f"/topics/log?since={token}&wait=60s"))
        target = f"/topic/messages?topic=t&follow=true&to={first + 2}"
        following = asyncio.create_task(bench.http("GET", target))
        assert 200 == (await bench.http("GET", "/ping"))[0]
        topic.publish([b"three"])
        assert 200 == (await bench.http("GET", "/ping"))[0]
        assert not waiting.done()
        bench.confirmation.confirm(topic, 1)
        assert first + 1 == (await waiting)["topics"][0]["high_watermark"]
        assert not following.done()
        bench.confirmation.confirm(topic)
        _, lines = await following
        assert ["one", "two"] == [json.loads(line)["body"] for line in lines.splitlines()]

    on_loop(tmp_path, test)
