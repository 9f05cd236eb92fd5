"""Publishes of one turn of the loop are one batch, and are answered when it is stored."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from penstock.broker.engine import Engine
from penstock.broker.publishing import TURN_BYTES, PublishConfirmation, TurnBatch
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.common.errors import StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.protocol import frames
from penstock.storage import DataPath, GroupCommit, LogSettings
from penstock.testing import ManualClock
from penstock.testing.bugs import raise_bug
from penstock.testing.files import FaultyFiles, MemoryFiles

STORED = "stored"

Answer: TypeAlias = "asyncio.Future[str]"


class Appends:
    """A listener of the engine that counts appends."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None: ...

    def topic_created(self, topic: Topic) -> None:
        def count_append() -> None:
            self.topics.append(topic.name)
            topic.call_on_next_change(count_append)

        topic.call_on_next_change(count_append)


class FutureAnswer:
    """Waits for a batch."""

    def __init__(self) -> None:
        self.future: Answer = asyncio.get_running_loop().create_future()

    def on_batch_done(self, batch: TurnBatch) -> None:
        assert batch.is_safe == (batch.failure is None)
        self.future.set_result(STORED if batch.is_safe else str(batch.failure))


class Bench:
    """An engine on a disk in memory; nobody consumes here."""

    def __init__(
        self, *, sync_every: int = 2500, confirmation: PublishConfirmation | None = None
    ) -> None:
        self.files = FaultyFiles(MemoryFiles())
        self.clock = ManualClock()
        self.appends = Appends()
        loop = asyncio.get_running_loop()
        self.commit = GroupCommit(loop.call_soon_threadsafe, loop.call_later, sync_every=sync_every)
        epoch = 0 if confirmation is None else 1
        self.data_path = DataPath.open("", LogSettings(), self.files, epoch=epoch)
        self.engine = Engine(
            BrokerSettings(),
            self.data_path,
            loop,
            self.clock,
            sample=lambda: 0.0,
            commit=self.commit,
            listener=self.appends,
            log=Logger("", LogLevel.FATAL),
            report_bug=raise_bug,
            housekeeping_seconds=1.0,
            confirmation=confirmation,
        )
        self.broker = self.engine.broker
        self.publisher = self.engine.publisher

    def publish(self, topic: Topic, bodies: list[bytes], defer_ns: int = 0) -> Answer:
        """A future that becomes "stored", or the failure's text."""
        answer = FutureAnswer()
        try:
            if defer_ns:
                batch = self.publisher.publish_deferred(topic, bodies, defer_ns)
            else:
                batch = self.publisher.publish(topic, bodies)
        except StorageError as failure:
            answer.future.set_result(str(failure))
        else:
            if batch is None:
                answer.future.set_result(STORED)
            else:
                batch.waiters.append(answer)
        return answer.future

    def close(self) -> None:
        self.files.heal()
        self.engine.stop()
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
            bench.publish(a, [b"1"]),
            bench.publish(b, [b"x"]),
            bench.publish(a, [b"2", b"3"]),
        ]
        assert [] == bench.appends.topics

        assert [STORED] * 3 == await asyncio.gather(*answers)
        assert ["a", "b"] == bench.appends.topics
        assert [(0, b"1"), (0, b"2"), (0, b"3")] == bench.stored(a)

    on_loop(test)


def test_all_is_settled_before_anybody_is_told() -> None:
    class Onlooker:
        def __init__(self) -> None:
            self.batches: list[TurnBatch] = []
            self.seen: list[list[bool]] = []

        def on_batch_done(self, batch: TurnBatch) -> None:
            self.seen.append([each.is_safe for each in self.batches])

    async def test(bench: Bench) -> None:
        onlooker = Onlooker()
        a, b = bench.broker.topic("a"), bench.broker.topic("b")
        for topic in (a, b):
            batch = bench.publisher.publish(topic, [b"1"])
            assert batch is not None
            batch.waiters.append(onlooker)
            onlooker.batches.append(batch)
        await asyncio.sleep(0)  # The turn ends.

        assert [[True, True]] * 2 == onlooker.seen

    on_loop(test)


def test_the_next_turn_is_the_next_batch() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        await bench.publish(topic, [b"1"])
        await bench.publish(topic, [b"2"])

        assert ["a", "a"] == bench.appends.topics

    on_loop(test)


def test_what_was_taken_can_be_stored_before_it_is_answered() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        answer = bench.publish(topic, [b"1"])
        bench.publisher.store()

        assert [(0, b"1")] == bench.stored(topic)
        assert not answer.done()
        assert STORED == await answer

    on_loop(test)


def test_a_deferred_message_keeps_its_place() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        due_ns = bench.clock.wall_ns() + SECOND_NS
        await asyncio.gather(
            bench.publish(topic, [b"1"]),
            bench.publish(topic, [b"2"], SECOND_NS),
            bench.publish(topic, [b"3"]),
        )

        assert [(0, b"1"), (due_ns, b"2"), (0, b"3")] == bench.stored(topic)

    on_loop(test)


def test_a_batch_that_has_become_large_is_stored_at_once() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        answers = [bench.publish(topic, [body]) for body in (b"1", b"x" * TURN_BYTES, b"3")]

        assert ["a"] == bench.appends.topics
        assert [STORED] * 3 == await asyncio.gather(*answers)
        assert ["a", "a"] == bench.appends.topics

    on_loop(test)


@pytest.mark.parametrize(
    ("topics_in_turn", "is_worth_it"),
    [("a", False), ("aa", False), ("ab", False), ("aaab", False), ("aaa", True), ("aaaab", True)],
)
def test_messages_wait_for_others_where_that_is_worth_it(
    topics_in_turn: str, *, is_worth_it: bool
) -> None:
    async def test(bench: Bench) -> None:
        async def turn() -> list[bool]:
            answers = [bench.publish(bench.broker.topic(each), [b"x"]) for each in topics_in_turn]
            are_done = [each.done() for each in answers]
            assert {STORED} == set(await asyncio.gather(*answers))
            return are_done

        at_once = [all(await turn()) for _ in range(2_100)]

        assert not at_once[0]
        assert (not is_worth_it) == any(at_once)
        if not is_worth_it:  # It is tried anew, or it would not be noticed that there is company.
            tried_again = at_once.index(False, at_once.index(True))
            assert any(at_once[tried_again:])

    on_loop(test)


def test_what_is_stored_at_once_may_fail_at_once() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        while not (answer := bench.publish(topic, [b"x"])).done():
            await answer
        bench.files.fail("write", times=1)
        failed = bench.publish(topic, [b"y"])

        assert failed.done()
        assert "cannot write to" in await failed

    on_loop(test)


def test_when_the_disk_fails_nobody_is_told_ok() -> None:
    async def test(bench: Bench) -> None:
        good, bad = bench.broker.topic("good#ephemeral"), bench.broker.topic("bad")
        bench.files.fail("write", times=None)
        answers = [
            bench.publish(bad, [b"1"]),
            bench.publish(good, [b"x"]),
            bench.publish(bad, [b"2"]),
            bench.publish(bad, [b"3"], SECOND_NS),
        ]
        outcomes = await asyncio.gather(*answers)

        assert [False, True, False, False] == [each == STORED for each in outcomes]
        assert all("cannot write to" in each for each in outcomes if each != STORED)
        assert [] == bench.stored(bad)

        bench.files.heal()
        assert STORED == await bench.publish(bad, [b"4"])
        assert [(0, b"4")] == bench.stored(bad)

    on_loop(test)


def test_an_ok_may_wait_for_the_fsync() -> None:
    async def test(bench: Bench) -> None:
        topic, ephemeral = bench.broker.topic("a"), bench.broker.topic("b#ephemeral")
        waiting = bench.publish(topic, [b"1"])
        at_once = bench.publish(ephemeral, [b"2"])
        await asyncio.sleep(0)  # The turn ends.

        assert (False, True) == (waiting.done(), at_once.done())
        assert STORED == await waiting

    on_loop(test, sync_every=1)


def test_the_error_of_a_failed_fsync_is_reported() -> None:
    async def test(bench: Bench) -> None:
        topic = bench.broker.topic("a")
        await bench.publish(topic, [b"0"])  # Reserves sequence numbers, with an fsync.
        bench.files.fail("sync", times=None)

        assert "cannot sync" in await bench.publish(topic, [b"1"])

    on_loop(test, sync_every=1)
