"""Publishes of one turn of the loop are one batch, and are answered when it is stored."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.clock import SECOND_NS
from penstock.log import DataPath, GroupCommit, LogSettings
from penstock.logs import Logger
from penstock.nsqd.durability import Durability
from penstock.nsqd.http_publisher import BATCH_BYTES, HttpPublisher
from penstock.testing import ManualClock
from penstock.testing.files import FaultyFiles, MemoryFiles
from penstock.webapi import OK, HttpError
from penstock.wire import frames


class Appends:
    """A broker's driver that counts appends; nobody consumes here."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def pump_soon(self) -> None: ...

    def advance_at(self, now_ns: int) -> None: ...

    def save_soon(self) -> None: ...

    def topology_changed(self) -> None: ...

    def appended(self, topic: Topic) -> None:
        self.topics.append(topic.name)


class Bench:
    """A publisher on a disk in memory."""

    def __init__(self, *, sync_every: int = 2500) -> None:
        self.files = FaultyFiles(MemoryFiles())
        self.clock = ManualClock()
        self.appends = Appends()
        self.log_lines: list[str] = []
        self.commit = GroupCommit(asyncio.get_running_loop().call_soon_threadsafe)
        self.data_path = DataPath.open("", LogSettings(), self.files)
        self.broker = Broker(
            BrokerSettings(), self.data_path, self.appends, self.clock, lambda: 0.0
        )
        log = Logger("", write=self.log_lines.append)
        self.publisher = HttpPublisher(self.clock, Durability(self.commit, sync_every), log)

    def close(self) -> None:
        self.files.heal()
        self.commit.close()
        self.broker.close()
        self.data_path.close()

    def stored(self, topic: Topic) -> list[tuple[int, bytes]]:
        """The messages of a topic, each with the time it is due."""
        runs = topic.log.read(topic.log.first_seq)
        return [(run.due_ns, frames.body(frame)) for run in runs for frame in run.frames]


def on_loop(test: Callable[[Bench], Coroutine[Any, Any, None]], *, sync_every: int = 2500) -> None:
    async def run() -> None:
        bench = Bench(sync_every=sync_every)
        try:
            await test(bench)
        finally:
            bench.close()

    asyncio.run(run())


def test_one_turn_is_one_batch_per_topic() -> None:
    async def test(bench: Bench) -> None:
        a, b = bench.broker.topic("a"), bench.broker.topic("b")
        answers = [
            bench.publisher.publish(a, [b"1"]),
            bench.publisher.publish(b, [b"x"]),
            bench.publisher.publish(a, [b"2", b"3"]),
        ]
        assert [] == bench.appends.topics

        assert [OK, OK, OK] == await asyncio.gather(*answers)
        assert ["a", "b"] == bench.appends.topics
        assert [(0, b"1"), (0, b"2"), (0, b"3")] == bench.stored(a)

    on_loop(test)


def test_the_next_turn_is_the_next_batch() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        await bench.publisher.publish(topic, [b"1"])
        await bench.publisher.publish(topic, [b"2"])

        assert ["a", "a"] == bench.appends.topics

    on_loop(test)


def test_a_flush_stores_what_was_taken() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        answer = bench.publisher.publish(topic, [b"1"])
        bench.publisher.flush()

        assert [(0, b"1")] == bench.stored(topic)
        assert OK is await answer

    on_loop(test)


def test_a_deferred_message_keeps_its_place() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        due_ns = bench.clock.wall_ns() + SECOND_NS
        await asyncio.gather(
            bench.publisher.publish(topic, [b"1"]),
            bench.publisher.publish_deferred(topic, b"2", SECOND_NS),
            bench.publisher.publish(topic, [b"3"]),
        )

        assert [(0, b"1"), (due_ns, b"2"), (0, b"3")] == bench.stored(topic)

    on_loop(test)


def test_a_large_batch_does_not_wait() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        answer = bench.publisher.publish(topic, [b"x" * BATCH_BYTES])

        assert answer.done()
        assert ["a"] == bench.appends.topics

    on_loop(test)


def test_when_the_disk_fails_nobody_is_told_ok() -> None:
    async def test(bench: Bench) -> None:
        good, bad = bench.broker.topic("good#ephemeral"), bench.broker.topic("bad")
        bench.files.fail("write", times=None)
        answers = [
            bench.publisher.publish(bad, [b"1"]),
            bench.publisher.publish(good, [b"x"]),
            bench.publisher.publish(bad, [b"2"]),
            bench.publisher.publish_deferred(bad, b"3", SECOND_NS),
        ]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)

        assert [503, OK, 503, 503] == [
            each.status if isinstance(each, HttpError) else each for each in outcomes
        ]
        assert [] == bench.stored(bad)
        assert all("ERROR: HTTP: failed to publish to bad - " in line for line in bench.log_lines)

        bench.files.heal()
        assert OK is await bench.publisher.publish(bad, [b"4"])
        assert [(0, b"4")] == bench.stored(bad)

    on_loop(test)


def test_an_ok_may_wait_for_the_fsync() -> None:
    async def test(bench: Bench) -> None:
        topic, ephemeral = bench.broker.topic("a"), bench.broker.topic("b#ephemeral")
        waiting = bench.publisher.publish(topic, [b"1"])
        at_once = bench.publisher.publish(ephemeral, [b"2"])
        bench.publisher.flush()

        assert (False, True) == (waiting.done(), at_once.done())
        assert OK is await waiting

    on_loop(test, sync_every=1)


def test_an_fsync_that_fails_is_told() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        bench.files.fail("sync", times=None)

        with pytest.raises(HttpError, match="503 EXITING"):
            await bench.publisher.publish(topic, [b"1"])

    on_loop(test, sync_every=1)
