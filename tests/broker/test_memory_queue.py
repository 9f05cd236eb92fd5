"""What a channel without a place in a log has."""

import pytest
from tests.broker.frames import WALL_NS, attempts_of, bodies_of, frames_of, ignore

from penstock.broker.memory_queue import TAKE_BYTES_MAX, Backlog
from penstock.protocol import frames as wire
from penstock.storage import Run


class TestInMemory:
    def test_it_gives_out_what_it_was_offered_in_order(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of(*"ab"), 0, wanted=0)
        backlog.offer(3, frames_of("c", first_seq=3), 0, wanted=0)

        assert (3, 0, 0) == (backlog.depth, backlog.log_depth, backlog.deferred_count)
        assert ["a", "b"] == bodies_of(backlog.take(2))
        assert ["c"] == bodies_of(backlog.take(5))
        assert not backlog.load()

    def test_what_finds_no_room_is_dropped(self) -> None:
        backlog = Backlog(3, ignore, ignore)
        backlog.offer(1, frames_of(*"ab"), 0, wanted=0)
        backlog.offer(3, frames_of(*"cd", first_seq=3), 0, wanted=0)
        backlog.offer(5, frames_of("e", first_seq=5), 0, wanted=0)

        assert ["a", "b", "c"] == bodies_of(backlog.take(10))

    def test_what_is_wanted_finds_room_beyond_the_limit(self) -> None:
        backlog = Backlog(0, ignore, ignore)
        backlog.offer(1, frames_of(*"abc"), 0, wanted=2)

        assert ["a", "b"] == bodies_of(backlog.take(10))

    def test_what_was_put_back_comes_again_at_the_end_with_one_attempt_more(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of(*"ab"), 0, wanted=0)
        backlog.put_back(backlog.take(1))

        assert not backlog.in_sequence
        again = backlog.take(10)
        assert ["b", "a"] == bodies_of(again)
        assert [1, 2] == attempts_of(again)

    def test_what_was_put_back_is_never_dropped(self) -> None:
        backlog = Backlog(1, ignore, ignore)
        backlog.offer(1, frames_of("a"), 0, wanted=0)
        taken = backlog.take(1)
        backlog.offer(2, frames_of("b", first_seq=2), 0, wanted=0)
        backlog.put_back(taken)

        assert ["b", "a"] == bodies_of(backlog.take(10))

    @pytest.mark.parametrize(("before", "after"), [(1, 2), (65534, 65535), (65535, 0)])
    def test_attempts_wrap(self, before: int, after: int) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.put_back([wire.with_attempts(frames_of("a")[0], before)])

        assert [after] == attempts_of(backlog.take(1))

    def test_an_empty_window_is_in_sequence_again(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of(*"ab"), 0, wanted=0)
        backlog.put_back(backlog.take(1))
        backlog.take(1)
        backlog.settle_sequence()
        assert not backlog.in_sequence

        backlog.take(1)
        backlog.settle_sequence()
        assert backlog.in_sequence

    def test_a_deferred_batch_waits_for_its_time(self) -> None:
        asked: list[int] = []
        backlog = Backlog(10, asked.append, ignore)
        backlog.offer(1, frames_of(*"ab"), WALL_NS + 5, wanted=0)
        assert [WALL_NS + 5] == asked
        assert WALL_NS + 5 == backlog.next_due_ns()
        assert (0, 2) == (backlog.depth, backlog.deferred_count)

        backlog.recall_due(WALL_NS + 4)
        assert not backlog.load()
        backlog.recall_due(WALL_NS + 5)
        assert not backlog.in_sequence
        assert (2, 0) == (backlog.depth, backlog.deferred_count)
        assert ["a", "b"] == bodies_of(backlog.take(10))
        assert backlog.next_due_ns() is None

    def test_what_is_put_back_with_a_time_waits_for_it(self) -> None:
        asked: list[int] = []
        backlog = Backlog(10, asked.append, ignore)
        backlog.offer(1, frames_of(*"ab"), 0, wanted=0)
        backlog.put_back(backlog.take(2), due_ns=WALL_NS + 5)
        assert WALL_NS + 5 in asked
        assert (0, 2) == (backlog.depth, backlog.deferred_count)

        backlog.recall_due(WALL_NS + 5)
        again = backlog.take(10)
        assert ["a", "b"] == bodies_of(again)
        assert [2, 2] == attempts_of(again)

    def test_it_takes_what_a_topic_had_held(self) -> None:
        backlog = Backlog(2, ignore, ignore)
        held = [
            Run(1, frames_of(*"ab"), 0),
            Run(3, frames_of("later", first_seq=3), WALL_NS + 5),
            Run(4, frames_of("c", first_seq=4), 0),
        ]
        backlog.release(held, next_seq=5)

        assert (2, 1) == (backlog.depth, backlog.deferred_count)
        assert ["a", "b"] == bodies_of(backlog.take(10))

    def test_clearing_leaves_nothing(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of("a"), 0, wanted=0)
        backlog.put_back(backlog.take(1))
        backlog.offer(2, frames_of("b", first_seq=2), WALL_NS, wanted=0)
        backlog.clear(3)

        assert (0, 0) == (backlog.depth, backlog.deferred_count)
        assert backlog.in_sequence
        assert backlog.next_due_ns() is None


class TestTaking:
    """The bytes of one take are bounded, so that one turn does not fill a connection's buffer."""

    def test_it_stops_at_about_a_mebibyte(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of(*("x" * 300_000 for _ in range(7))), 0, wanted=0)

        taken = backlog.take(7)

        assert 3 == len(taken)
        assert sum(map(len, taken)) <= TAKE_BYTES_MAX
        assert 4 == backlog.depth

    def test_it_leaves_the_rest_in_order(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        bodies = [str(number) * 500_000 for number in range(5)]
        backlog.offer(1, frames_of(*bodies), 0, wanted=0)

        taken: list[list[bytes]] = []
        while backlog.load():
            taken.append(backlog.take(10))

        assert [bodies[:2], bodies[2:4], bodies[4:]] == [bodies_of(batch) for batch in taken]

    def test_a_message_larger_than_that_goes_alone(self) -> None:
        backlog = Backlog(10, ignore, ignore)
        backlog.offer(1, frames_of("x" * (2 * TAKE_BYTES_MAX), "a", "b"), 0, wanted=0)

        assert [1, 2] == [len(backlog.take(10)), len(backlog.take(10))]
