"""Looking into a channel changes nothing; cancelling and recalling change one message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.fakes import MSG_TIMEOUT_NS, Host

from penstock.broker.deferred import Deferred
from penstock.broker.memory_queue import PendingMessage
from penstock.broker.message_id import id_number
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import DEADLINE_GRAIN_NS
from penstock.common.clock import SECOND_NS
from penstock.protocol import frames as wire
from penstock.storage import READ_BYTES

SIZES = pytest.mark.parametrize("mem_queue_size", [10_000, 2, 0])


def host_with(mem_queue_size: int) -> Host:
    host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
    host.channel()
    return host


def bodies(peeked: list[PendingMessage]) -> list[str]:
    return [wire.body(waiting.frame).decode() for waiting in peeked]


class TestQueued:
    @SIZES
    def test_they_are_seen_in_the_order_in_which_they_will_come(self, mem_queue_size: int) -> None:
        host = host_with(mem_queue_size)
        host.publish("t", *"abc")
        host.publish("t", *"de")
        consumer = host.consumer(rdy=2)
        consumer.fin("b")

        seen = bodies(host.channel().peek(100))
        assert seen[:2] == bodies(host.channel().peek(2))
        consumer.rdy(100)
        assert ["a", "b", "c", *seen] == consumer.take()

    @SIZES
    def test_those_that_have_come_due_are_seen_with_them(self, mem_queue_size: int) -> None:
        host = host_with(mem_queue_size)
        for body in "abcd":
            host.publish("t", body, defer_ns=SECOND_NS)
        host.pass_time(SECOND_NS)
        host.publish("t", *"ef")

        assert [*"abcdef"] == bodies(host.channel().peek(100))
        assert [*"abc"] == bodies(host.channel().peek(3))
        assert (6, 0) == (host.channel().depth, host.channel().deferred_count)
        assert host.broker.next_deadline_ns() is None
        taken = host.consumer(rdy=10).take()
        assert ([*"abcd"], [*"ef"]) == (
            [body for body in taken if body in "abcd"],
            [body for body in taken if body in "ef"],
        )

    def test_what_is_finished_or_delivered_before_is_so_after_a_restart(self) -> None:
        host = host_with(10)
        host.publish("t", *"abc")
        consumer = host.consumer(rdy=3)
        consumer.fin("b")
        host.restart()
        peeked = host.channel().peek(100)

        assert ["a", "c"] == bodies(peeked)
        assert [2, 2] == [wire.attempts(waiting.frame) for waiting in peeked]
        assert ["a", "c"] == host.consumer(rdy=3).take()

    def test_only_so_much_of_the_log_is_read(self) -> None:
        host = host_with(0)
        for _ in range(40):
            host.publish("t", "x" * (READ_BYTES // 2))

        assert 8 <= len(host.channel().peek(100)) <= 10

    def test_what_the_topic_holds_back_is_not_seen(self) -> None:
        host = host_with(0)
        host.publish("t", "a")
        host.broker.topic("t").pause(True)
        host.publish("t", "b")

        assert ["a"] == bodies(host.channel().peek(100))


class TestInFlight:
    def test_each_has_its_deadline(self) -> None:
        host = host_with(10)
        host.publish("t", *"ab")
        consumer = host.consumer(rdy=2)
        delivered_ns = host.clock.now_ns()
        host.clock.advance(SECOND_NS)
        consumer.touch("b")
        first, second = host.channel().peek_in_flight(100)

        assert (consumer.subscriber, b"a") == (first[0], wire.body(first[1]))
        assert delivered_ns + MSG_TIMEOUT_NS + DEADLINE_GRAIN_NS == first[2]
        assert delivered_ns + SECOND_NS + MSG_TIMEOUT_NS == second[2]
        assert [first] == host.channel().peek_in_flight(1)


class TestDeferred:
    @SIZES
    def test_they_are_seen_in_the_order_in_which_they_are_due(self, mem_queue_size: int) -> None:
        host = host_with(mem_queue_size)
        host.publish("t", *"de", defer_ns=2 * SECOND_NS)
        host.publish("t", *"abc", defer_ns=SECOND_NS)

        assert [*"abcde"] == bodies(host.channel().peek_deferred(100))
        assert [*"abcd"] == bodies(host.channel().peek_deferred(4))
        assert [] == host.channel().peek(100)

    @SIZES
    @pytest.mark.parametrize("cancelled", [*"abc"])
    @pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
    def test_one_that_is_cancelled_does_not_come(
        self, topic: str, mem_queue_size: int, cancelled: str
    ) -> None:
        host = host_with(mem_queue_size)
        consumer = host.consumer(topic, rdy=10)
        host.publish(topic, *"abc", defer_ns=SECOND_NS)
        frames = [waiting.frame for waiting in consumer.channel.peek_deferred(3)]
        message_id = wire.message_id(frames["abc".index(cancelled)])

        assert consumer.channel.cancel(message_id, host.clock.wall_ns())
        assert not consumer.channel.cancel(message_id, host.clock.wall_ns())
        assert 2 == consumer.channel.deferred_count
        host.pass_time(2 * SECOND_NS)
        assert sorted({*"abc"} - {cancelled}) == consumer.take()

    def test_one_that_is_still_in_the_log_can_be_cancelled(self) -> None:
        host = host_with(0)
        host.publish("t", "a")
        host.publish("t", *"bc", defer_ns=SECOND_NS)
        channel, now_ns = host.channel(), host.clock.wall_ns()
        waiting = [*channel.peek(100), *channel.peek_deferred(100)]
        a, b, _ = [wire.message_id(each.frame) for each in waiting]

        assert not channel.cancel(a, now_ns)
        assert not channel.cancel(b"%016x" % id_number(0, 5), now_ns)
        assert channel.cancel(b, now_ns)
        assert not channel.cancel(b, now_ns)
        assert (1, 1) == (channel.depth, channel.deferred_count)
        host.crash()
        host.pass_time(2 * SECOND_NS)
        consumer = host.consumer(rdy=10)
        host.pass_time(SECOND_NS)
        assert ["c", "a"] == consumer.take()

    @SIZES
    @pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
    def test_one_that_is_recalled_comes_at_once(self, topic: str, mem_queue_size: int) -> None:
        host = host_with(mem_queue_size)
        consumer = host.consumer(topic, rdy=10)
        host.publish(topic, *"abc", defer_ns=SECOND_NS)
        _, b, _ = [wire.message_id(each.frame) for each in consumer.channel.peek_deferred(3)]

        assert consumer.channel.requeue_now(b, host.clock.wall_ns())
        host.pump()
        assert ["b"] == consumer.take()
        assert 2 == consumer.channel.deferred_count
        host.pass_time(SECOND_NS)
        assert [*"ac"] == consumer.take()

    @pytest.mark.parametrize("is_read", [True, False], ids=["read", "still in the log"])
    def test_that_it_was_recalled_outlives_a_crash(self, is_read: bool) -> None:
        host = host_with(10 if is_read else 0)
        host.publish("t", "a")
        host.publish("t", *"bc", defer_ns=SECOND_NS)
        channel, now_ns = host.channel(), host.clock.wall_ns()
        b = wire.message_id(channel.peek_deferred(100)[0].frame)

        assert not channel.requeue_now(b"%016x" % id_number(0, 5), now_ns)
        assert channel.requeue_now(b, now_ns)
        host.crash()
        assert [*"ab"] == host.consumer(rdy=10).take()


@given(
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=8),
    removed=st.lists(st.integers(0, 20)),
    frames_max=st.sampled_from([None, 0, 7]),
    count=st.integers(0, 20),
)
def test_deferred_messages_against_a_sorted_list(
    runs: list[tuple[int, int]], removed: list[int], frames_max: int | None, count: int
) -> None:
    deferred = Deferred(frames_max)
    waiting: list[tuple[int, int]] = []
    for due_ns, length in runs:
        first_seq = len(waiting)
        deferred.add(due_ns, first_seq, [b"%d" % (first_seq + at) for at in range(length)])
        waiting += [(due_ns, first_seq + at) for at in range(length)]
    for seq in removed:
        is_there = any(seq == each for _, each in waiting)
        assert is_there == deferred.remove(seq)
        waiting = [each for each in waiting if each[1] != seq]

    first = deferred.peek(count)

    assert len(waiting) == len(deferred)
    assert [seq for _, seq in sorted(waiting)][:count] == [
        run.first_seq + at for run in first for at in range(run.length)
    ]
    for run in first:
        names = [b"%d" % (run.first_seq + at) for at in range(run.length)]
        assert run.frames is None or names == run.frames
