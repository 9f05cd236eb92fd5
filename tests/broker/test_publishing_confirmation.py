"""With replication, a publish is answered when it is confirmed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.broker.confirmation import ScriptedConfirmation
from tests.broker.test_publishing import STORED, Bench

from penstock.broker.publishing import Replies
from penstock.common.clock import SECOND_NS
from penstock.common.errors import NotInSyncError, StorageError
from penstock.testing.waiting import TIMEOUT_SECONDS

OUT_OF_SYNC = NotInSyncError("1 of 3 members is in sync, 2 are required")


class ReplicatedBench(Bench):
    """An engine whose publishes are confirmed by the test."""

    def __init__(self, *, sync_every: int = 2500) -> None:
        self.confirmation = ScriptedConfirmation()
        super().__init__(sync_every=sync_every, confirmation=self.confirmation)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 (a thread changes it)
            await asyncio.sleep(0.001)


def on_loop(
    test: Callable[[ReplicatedBench], Coroutine[Any, Any, None]], *, sync_every: int = 2500
) -> None:
    async def run() -> None:
        bench = ReplicatedBench(sync_every=sync_every)
        try:
            await test(bench)
        finally:
            bench.close()

    asyncio.run(run())


def test_publishes_are_answered_when_confirmed() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        first = [bench.publish(topic, [b"1"]), bench.publish(topic, [b"2", b"3"])]
        await turns()
        second = bench.publish(topic, [b"4"])
        deferred = bench.publish(topic, [b"5"], SECOND_NS)
        await turns()
        assert not any(each.done() for each in [*first, second, deferred])
        assert [b"1", b"2", b"3", b"4", b"5"] == [body for _, body in bench.stored(topic)]

        bench.confirmation.confirm(topic, 3)
        await turns()
        assert [STORED] * 2 == [each.result() for each in first]
        assert not second.done()
        bench.confirmation.confirm(topic)
        await turns()
        assert [STORED] * 2 == [second.result(), deferred.result()]

    on_loop(test)


def test_publishes_that_would_be_stored_at_once_wait_too() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        bench.publisher.skip_batching(100)
        for _ in range(200):  # Batching does not pay, so that the publisher would turn it off.
            answer = bench.publish(topic, [b"x"])
            await turns()
            assert not answer.done()
            bench.confirmation.confirm(topic)
            await turns()
            assert answer.result() == STORED

    on_loop(test)


def test_ephemeral_topics_need_no_confirmation() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t#ephemeral")
        bench.confirmation.refusal = OUT_OF_SYNC
        answers = [bench.publish(topic, [b"1"]), bench.publish(topic, [b"2"], SECOND_NS)]
        await turns()
        assert [STORED] * 2 == [each.result() for each in answers]
        assert [] == bench.confirmation.waiting

    on_loop(test)


def test_nothing_is_stored_while_too_few_members_are_in_sync() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        bench.confirmation.refusal = OUT_OF_SYNC
        answers = [bench.publish(topic, [b"1"]), bench.publish(topic, [b"2"], SECOND_NS)]
        await turns()
        assert [str(OUT_OF_SYNC)] * 2 == [each.result() for each in answers]
        assert [] == bench.stored(topic)

        bench.confirmation.refusal = None
        answer = bench.publish(topic, [b"3"])
        await turns()
        bench.confirmation.confirm(topic)
        await turns()
        assert answer.result() == STORED
        assert [(0, b"3")] == bench.stored(topic)

    on_loop(test)


def test_failed_confirmation() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        failed = bench.publish(topic, [b"1"])
        await turns()
        bench.confirmation.fail(topic, StorageError("no longer the leader"))
        await turns()
        assert failed.result() == "no longer the leader"
        answer = bench.publish(topic, [b"2"])
        await turns()
        bench.confirmation.confirm(topic)
        await turns()
        assert answer.result() == STORED

    on_loop(test)


def test_fsyncs_are_still_requested() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        assert topic.store is not None
        log = topic.store.log
        answer = bench.publish(topic, [b"1", b"2"])
        await turns()
        await eventually(lambda: log.synced_seq == log.next_seq)
        assert not answer.done()
        assert [] == bench.confirmation.synced_seqs
        bench.confirmation.confirm(topic)
        await turns()
        assert answer.result() == STORED

    on_loop(test, sync_every=2)


def test_confirmation_is_told_about_each_fsync() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        answer = bench.publish(topic, [b"1"])
        await turns()
        await eventually(lambda: bool(bench.confirmation.synced_seqs))
        assert [topic.log.next_seq] == bench.confirmation.synced_seqs
        assert not answer.done()
        bench.confirmation.confirm(topic)
        await turns()
        assert answer.result() == STORED

    on_loop(test, sync_every=1)


def test_failed_fsync_fails_the_publish() -> None:
    async def test(bench: ReplicatedBench) -> None:
        topic = bench.broker.topic("t")
        bench.publish(topic, [b"1"])
        await eventually(lambda: len(bench.confirmation.synced_seqs) == 1)
        bench.files.fail("sync", times=None)
        answer = bench.publish(topic, [b"2"])
        await eventually(answer.done)
        assert "Input/output error" in answer.result()
        assert [b"1", b"2"] == [body for _, body in bench.stored(topic)]
        bench.confirmation.confirm(topic)  # Has no effect on the answer.
        await turns()
        assert 1 == len(bench.confirmation.synced_seqs)

    on_loop(test, sync_every=1)


def test_replies_of_a_connection_stay_in_order() -> None:
    async def test(bench: ReplicatedBench) -> None:
        written: list[bytes] = []
        replies = Replies(written.append, lambda _command, _failure: None)
        a, b = bench.broker.topic("a"), bench.broker.topic("b")
        for topic, data in ((a, b"a1 "), (b, b"b1 "), (a, b"a2 ")):
            batch = bench.publisher.publish(topic, [data])
            assert batch is not None
            replies.send_when_stored(batch, "PUB", data)
            await turns()
        replies.send(b"other ")
        bench.confirmation.confirm(b)
        await turns()
        assert [] == written
        bench.confirmation.confirm(a, 1)
        await turns()
        assert b"a1 b1 " == b"".join(written)
        bench.confirmation.confirm(a)
        await turns()
        assert b"a1 b1 a2 other " == b"".join(written)

    on_loop(test)
