"""Queues in memory: the window, and the queue of an ephemeral channel."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.frames import WALL_NS, attempts_of, bodies_of, frames_of, ignore

from penstock.broker.memory_queue import TAKE_BYTES_MAX, EphemeralQueue, Window
from penstock.protocol import frames as wire
from penstock.storage import Run


class TestInMemory:
    def test_messages_are_taken_in_order(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of(*"ab"), 0, wanted=0)
        queue.enqueue(3, frames_of("c", first_seq=3), 0, wanted=0)

        assert (3, 0) == (queue.depth, queue.deferred_count)
        assert ["a", "b"] == bodies_of(queue.take(2))
        assert ["c"] == bodies_of(queue.take(5))
        assert not queue.load()

    def test_messages_beyond_the_limit_are_dropped(self) -> None:
        queue = EphemeralQueue(3, ignore, ignore)
        queue.enqueue(1, frames_of(*"ab"), 0, wanted=0)
        queue.enqueue(3, frames_of(*"cd", first_seq=3), 0, wanted=0)
        queue.enqueue(5, frames_of("e", first_seq=5), 0, wanted=0)

        assert ["a", "b", "c"] == bodies_of(queue.take(10))

    def test_wanted_messages_exceed_the_limit(self) -> None:
        queue = EphemeralQueue(0, ignore, ignore)
        queue.enqueue(1, frames_of(*"abc"), 0, wanted=2)

        assert ["a", "b"] == bodies_of(queue.take(10))

    def test_a_requeued_message_is_last_and_has_one_attempt_more(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of(*"ab"), 0, wanted=0)
        queue.requeue(queue.take(1))

        assert not queue.in_sequence
        again = queue.take(10)
        assert ["b", "a"] == bodies_of(again)
        assert [1, 2] == attempts_of(again)

    def test_requeued_messages_are_never_dropped(self) -> None:
        queue = EphemeralQueue(1, ignore, ignore)
        queue.enqueue(1, frames_of("a"), 0, wanted=0)
        taken = queue.take(1)
        queue.enqueue(2, frames_of("b", first_seq=2), 0, wanted=0)
        queue.requeue(taken)

        assert ["b", "a"] == bodies_of(queue.take(10))

    @pytest.mark.parametrize(("before", "after"), [(1, 2), (65534, 65535), (65535, 0)])
    def test_attempts_wrap(self, before: int, after: int) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.requeue([wire.with_attempts(frames_of("a")[0], before)])

        assert [after] == attempts_of(queue.take(1))

    def test_an_empty_window_is_in_sequence_again(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of(*"ab"), 0, wanted=0)
        queue.requeue(queue.take(1))
        queue.take(1)
        queue.update_in_sequence()
        assert not queue.in_sequence

        queue.take(1)
        queue.update_in_sequence()
        assert queue.in_sequence

    def test_a_deferred_batch_waits_for_its_time(self) -> None:
        asked: list[int] = []
        queue = EphemeralQueue(10, asked.append, ignore)
        queue.enqueue(1, frames_of(*"ab"), WALL_NS + 5, wanted=0)
        assert [WALL_NS + 5] == asked
        assert WALL_NS + 5 == queue.next_due_ns()
        assert (0, 2) == (queue.depth, queue.deferred_count)

        queue.enqueue_due(WALL_NS + 4)
        assert not queue.load()
        queue.enqueue_due(WALL_NS + 5)
        assert not queue.in_sequence
        assert (2, 0) == (queue.depth, queue.deferred_count)
        assert ["a", "b"] == bodies_of(queue.take(10))
        assert queue.next_due_ns() is None

    def test_a_message_requeued_with_a_delay_is_deferred(self) -> None:
        asked: list[int] = []
        queue = EphemeralQueue(10, asked.append, ignore)
        queue.enqueue(1, frames_of(*"ab"), 0, wanted=0)
        queue.requeue(queue.take(2), due_ns=WALL_NS + 5)
        assert WALL_NS + 5 in asked
        assert (0, 2) == (queue.depth, queue.deferred_count)

        queue.enqueue_due(WALL_NS + 5)
        again = queue.take(10)
        assert ["a", "b"] == bodies_of(again)
        assert [2, 2] == attempts_of(again)

    def test_released_messages_are_queued(self) -> None:
        queue = EphemeralQueue(2, ignore, ignore)
        held = [
            Run(1, frames_of(*"ab"), 0),
            Run(3, frames_of("later", first_seq=3), WALL_NS + 5),
            Run(4, frames_of("c", first_seq=4), 0),
        ]
        queue.enqueue_released(held, next_seq=5)

        assert (2, 1) == (queue.depth, queue.deferred_count)
        assert ["a", "b"] == bodies_of(queue.take(10))

    def test_clear_drops_everything(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of("a"), 0, wanted=0)
        queue.requeue(queue.take(1))
        queue.enqueue(2, frames_of("b", first_seq=2), WALL_NS, wanted=0)
        queue.clear(3)

        assert (0, 0) == (queue.depth, queue.deferred_count)
        assert queue.in_sequence
        assert queue.next_due_ns() is None


class TestTaking:
    """The bytes of one take are bounded, so that one turn does not fill a connection's buffer."""

    def test_take_stops_at_about_a_mebibyte(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of(*("x" * 300_000 for _ in range(7))), 0, wanted=0)

        taken = queue.take(7)

        assert 3 == len(taken)
        assert sum(map(len, taken)) <= TAKE_BYTES_MAX
        assert 4 == queue.depth

    def test_take_leaves_the_rest_in_order(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        bodies = [str(number) * 500_000 for number in range(5)]
        queue.enqueue(1, frames_of(*bodies), 0, wanted=0)

        taken: list[list[bytes]] = []
        while queue.load():
            taken.append(queue.take(10))

        assert [bodies[:2], bodies[2:4], bodies[4:]] == [bodies_of(batch) for batch in taken]

    def test_a_larger_message_is_taken_alone(self) -> None:
        queue = EphemeralQueue(10, ignore, ignore)
        queue.enqueue(1, frames_of("x" * (2 * TAKE_BYTES_MAX), "a", "b"), 0, wanted=0)

        assert [1, 2] == [len(queue.take(10)), len(queue.take(10))]


# Window

PLENTY = 1 << 20


def window_of(*frames: bytes) -> Window:
    window = Window()
    window.extend(frames)
    return window


def test_first_in_first_out() -> None:
    window = window_of(b"a", b"b", b"c")

    assert [b"a", b"b"] == window.take(2, PLENTY)
    assert 1 == len(window)
    assert [b"c"] == window.take(2, PLENTY)
    assert [] == window.take(2, PLENTY)


@pytest.mark.parametrize(
    ("bytes_max", "taken"), [(0, 1), (3, 1), (6, 2), (8, 2), (9, 3), (PLENTY, 3)]
)
def test_take_is_limited_in_bytes_except_for_the_first_frame(bytes_max: int, taken: int) -> None:
    window = window_of(b"aaa", b"bbb", b"ccc")

    assert taken == len(window.take(3, bytes_max))
    assert 3 - taken == len(window)


def test_taken_frames_are_freed() -> None:
    window = window_of(*[b"x"] * 5000)
    while len(window) > 1:
        window.take(1, PLENTY)

    assert len(window._frames) <= 1024


def test_large_taken_frames_are_freed_sooner() -> None:
    window = window_of(*[bytes(1 << 18)] * 100)
    while len(window) > 1:
        window.take(1, PLENTY)

        assert len(window._frames) - len(window) < 4


def test_a_cleared_window_is_empty() -> None:
    window = window_of(b"a", b"b")
    window.take(1, PLENTY)
    window.clear()

    assert (0, 0) == (len(window), window.size_bytes)
    assert [] == window.take(1, PLENTY)


@given(st.lists(st.integers(0, 3000), max_size=30), st.lists(st.integers(1, 2000), max_size=30))
def test_window_behaves_like_a_deque(puts: list[int], takes: list[int]) -> None:
    window, model = Window(), deque[bytes]()
    number = 0
    for put, take in zip(puts, takes, strict=False):
        frames = [b"%d" % index for index in range(number, number + put)]
        number += put
        window.extend(frames)
        model.extend(frames)
        expected = [model.popleft() for _ in range(min(take, len(model)))]

        assert expected == window.take(take, PLENTY)
        assert len(model) == len(window)
        assert sum(map(len, model)) == window.size_bytes
