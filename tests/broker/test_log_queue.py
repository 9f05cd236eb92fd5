"""The queue of a persistent channel, in memory and in the topic's log."""

from typing import NoReturn

import pytest
from tests.broker.fakes import damage
from tests.broker.frames import WALL_NS, attempts_of, bodies_of, frames_of, ids_of

from penstock.broker.log_queue import HELD_BYTES_MAX, LogQueue
from penstock.common.errors import StorageError
from penstock.protocol import frames as wire
from penstock.storage import READ_BYTES, DataPath, LogSettings, Run, TopicStore
from penstock.storage.segment import Segment
from penstock.testing import MemoryFiles

MIB = 1 << 20


class Journal:
    """A topic's log and cursors on files in memory, and what a queue asks for."""

    def __init__(self, log_settings: LogSettings | None = None) -> None:
        self.files = MemoryFiles()
        self.files.make_folder("data")
        self.log_settings = log_settings or LogSettings()
        self.due_asked: list[int] = []
        self.progress_told = 0
        self.open()

    def open(self) -> None:
        self.data_path = DataPath.open("data", self.log_settings, self.files)
        self.store: TopicStore
        self.store, _ = self.data_path.open_topic("t", wall_ns=WALL_NS)

    def reopen(self) -> None:
        self.store.close()
        self.data_path.close()
        self.open()

    def append(self, *bodies: str, due_ns: int = 0) -> tuple[int, list[bytes]]:
        first_seq = self.store.log.next_seq
        frames = frames_of(*bodies, first_seq=first_seq)
        self.store.log.append(frames, WALL_NS, due_ns)
        return first_seq, frames

    def queue(self, released_seq: int, window_max: int = 10_000) -> LogQueue:
        return LogQueue(
            "c",
            self.store.log,
            self.store.cursors,
            released_seq,
            window_max,
            self.due_asked.append,
            self.tell_progress,
            lambda: WALL_NS,
        )

    def publish(self, queue: LogQueue, *bodies: str, due_ns: int = 0, wanted: int = 0) -> None:
        first_seq, frames = self.append(*bodies, due_ns=due_ns)
        queue.enqueue(first_seq, frames, due_ns, wanted)

    def tell_progress(self) -> None:
        self.progress_told += 1

    @property
    def floor(self) -> int:
        return self.store.cursors.progress["c"].floor


def failing(*_: object) -> NoReturn:
    raise OSError("the disk is ill")


def number_of(body: str) -> int:
    """The number that a body begins with; -1 if it begins with none."""
    word = body.split(maxsplit=1)[0]
    return int(word) if word.isdigit() else -1


def take_all(queue: LogQueue) -> list[bytes]:
    taken: list[bytes] = []
    while queue.load():
        taken += queue.take(3)
    return taken


class TestOnTheLog:
    @pytest.fixture
    def journal(self) -> Journal:
        return Journal()

    def test_channel_that_keeps_up_gets_messages_from_publishes(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        journal.publish(queue, *"ab")

        assert (2, 0) == (queue.depth, queue.log_depth)
        assert ["a", "b"] == bodies_of(queue.take(10))

    @pytest.mark.parametrize("window_max", [0, 1, 2, 3, 4, 100])
    @pytest.mark.parametrize("wanted", [0, 2])
    def test_messages_beyond_the_window_are_read_from_the_log_in_order(
        self, journal: Journal, window_max: int, wanted: int
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max)
        for batch in ("abc", "d", "efg"):
            journal.publish(queue, *batch, wanted=wanted)
        in_memory = min(7, max(window_max, wanted))
        assert (7, 7 - in_memory) == (queue.depth, queue.log_depth)

        assert [*"abcdefg"] == bodies_of(take_all(queue))
        assert (0, 0) == (queue.depth, queue.log_depth)

    @pytest.mark.parametrize("window_max", [0, 1, 3])
    def test_channel_that_has_caught_up_gets_messages_from_publishes_again(
        self, journal: Journal, window_max: int
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max)
        journal.publish(queue, *"abcde")
        first = take_all(queue)
        journal.publish(queue, "f", wanted=1)

        assert (1, 0) == (queue.depth, queue.log_depth)
        assert [*"abcdef"] == bodies_of(first + take_all(queue))

    def test_a_read_of_the_log_is_bounded(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=10)
        for _ in range(50):
            journal.publish(queue, *["x" * 1000] * 50)
        queue.take(10)
        assert queue.load()

        in_memory = queue.depth - queue.log_depth
        assert 0 < in_memory * 1034 <= READ_BYTES + 50 * 1034

    def test_the_window_is_limited_in_bytes(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        for number in range(50):
            journal.publish(queue, f"{number} " + "x" * MIB)
        in_memory = queue.depth - queue.log_depth
        assert in_memory * MIB <= HELD_BYTES_MAX < (in_memory + 1) * (MIB + 40)

        numbers = [body.split()[0] for body in bodies_of(take_all(queue))]
        assert [str(number) for number in range(50)] == numbers
        journal.publish(queue, "at the tail again")
        assert (1, 0) == (queue.depth, queue.log_depth)

    def test_deferred_messages_in_memory_are_limited_in_bytes(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        for _ in range(50):
            journal.publish(queue, "x" * MIB, due_ns=WALL_NS + 1)
        held = [run for run in queue._deferred.peek(50) if run.frames is not None]

        assert HELD_BYTES_MAX // (MIB + 34) == len(held)
        queue.enqueue_due(WALL_NS + 1)
        assert 50 == len(take_all(queue))

    def test_due_messages_in_memory_are_limited_in_bytes(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        bodies = [f"{number} " + "x" * MIB for number in range(100)]
        for body in bodies:
            journal.publish(queue, body, due_ns=WALL_NS + 1)
        queue.enqueue_due(WALL_NS + 1)
        journal.publish(queue, "published after them")
        assert (101, 0) == (queue.depth, queue.deferred_count)
        assert queue.next_due_ns() is None

        taken: list[bytes] = []
        while queue.load():
            assert queue._due.size_bytes < HELD_BYTES_MAX + MIB + 100
            taken += queue.take(3)
        assert ["published after them", *bodies] == sorted(bodies_of(taken), key=number_of)
        assert (0, 0) == (queue.depth, queue.deferred_count)

    def test_reading_single_deferred_messages_is_bounded(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        for _ in range(200):
            journal.publish(queue, "a", due_ns=WALL_NS + 1)
        read, read_counts = journal.store.log.read, list[int]()

        def counted(seq: int, max_bytes: int = READ_BYTES) -> list[Run]:
            runs = read(seq, max_bytes)
            read_counts.append(sum(len(run.frames) for run in runs))
            return runs

        monkeypatch.setattr(journal.store.log, "read", counted)
        queue.enqueue_due(WALL_NS + 1)

        assert 200 == len(take_all(queue))
        assert [1] * 199 == read_counts[1:]

    @pytest.mark.parametrize("window_max", [0, 1, 3, 100])
    def test_requeued_messages_delay_neither_due_messages_nor_the_log(
        self, journal: Journal, window_max: int
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max)
        journal.publish(queue, *["again"] * 5)
        taken = take_all(queue)
        for body in "abcde":
            journal.publish(queue, body, due_ns=WALL_NS + 1)
        queue.requeue(taken)
        queue.enqueue_due(WALL_NS + 1)
        journal.publish(queue, "published after them")
        seen: list[str] = []
        while len(seen) < 150:
            queue.load()
            frames = queue.take(1)
            seen += bodies_of(frames)
            queue.requeue(frames)

        assert {"again", *"abcde", "published after them"} == {*seen}

    def test_with_requeued_messages_at_most_one_piece_of_the_log_is_in_memory(
        self, journal: Journal
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        for _ in range(20):
            journal.publish(queue, "x" * READ_BYTES)
        queue.load()
        queue.requeue(queue.take(1))
        for _ in range(3):
            queue.load()

        assert 1 + 1 == queue.depth - queue.log_depth

    def test_messages_requeued_again_and_again_do_not_delay_the_log(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=300)
        journal.publish(queue, *["again"] * 300)
        journal.publish(queue, "in the log")
        taken: set[str] = set()
        for _ in range(2 * 301):
            queue.load()
            frames = queue.take(1)
            taken |= {*bodies_of(frames)}
            queue.requeue(frames)

        assert {"again", "in the log"} == taken

    def test_a_batch_larger_than_a_piece_is_read(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        journal.publish(queue, "x" * (2 * READ_BYTES), "a")
        journal.publish(queue, "b")

        assert 3 == len(take_all(queue))

    def test_messages_held_back_by_the_topic_are_not_read(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        journal.publish(queue, *"ab")
        journal.append(*"cd")
        assert [*"ab"] == bodies_of(take_all(queue))

        queue.enqueue_released([], journal.store.log.next_seq)
        assert [*"cd"] == bodies_of(take_all(queue))

    def test_a_deferred_publish_joins_the_deferred_set(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        journal.publish(queue, "a")
        journal.publish(queue, "later", due_ns=WALL_NS + 5)
        journal.publish(queue, "b")

        assert (2, 1) == (queue.depth, queue.deferred_count)
        assert [*"ab"] == bodies_of([each.frame for each in queue.peek(9)])
        assert [*"ab"] == bodies_of(take_all(queue))
        assert [WALL_NS + 5] == journal.due_asked
        assert (0, 1) == (queue.depth, queue.deferred_count)
        queue.enqueue_due(WALL_NS + 5)
        assert ["later"] == bodies_of(take_all(queue))

    def test_deferred_messages_are_known_after_a_restart_before_the_log_is_read(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        journal.publish(queue, *"ab")
        journal.publish(queue, *"xy", due_ns=WALL_NS + 5)
        journal.publish(queue, "c")
        journal.publish(queue, "z", due_ns=WALL_NS)
        journal.reopen()
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "batches", None)
            again = journal.queue(journal.store.log.next_seq, window_max=0)

        assert (4, 2) == (again.depth, again.deferred_count)
        assert WALL_NS + 5 == again.next_due_ns()
        assert [*"abcz"] == bodies_of(take_all(again))
        again.enqueue_due(WALL_NS + 5)
        assert [*"xy"] == bodies_of(take_all(again))
        assert (0, 0) == (again.depth, again.deferred_count)

    def test_messages_requeued_with_a_delay_are_known_after_a_restart(
        self, journal: Journal
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        journal.publish(queue, *"abcd")
        taken = queue.take(4)
        for frame in taken[::2]:
            queue.requeue([frame], due_ns=WALL_NS + 5)
        queue.finish(ids_of(journal.store.log.next_seq - 1))
        queue.report_finished()
        journal.reopen()

        again = journal.queue(journal.store.log.next_seq)
        assert (1, 2) == (again.depth, again.deferred_count)
        assert ["b"] == bodies_of(take_all(again))
        again.enqueue_due(WALL_NS + 5)
        frames = take_all(again)
        assert ([*"ac"], [2, 2]) == (bodies_of(frames), attempts_of(frames))

    def test_a_long_search_for_deferred_messages_is_done_in_steps(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        for number in range(3000):
            journal.append(str(number), due_ns=WALL_NS + number)
        queue.enqueue_released([], journal.store.log.next_seq)

        counts = []
        while queue.find_deferred():
            assert 3000 == queue.depth + queue.deferred_count
            counts.append(queue.deferred_count)
        assert [1023, 2047, 2999] == counts  # the first was due already
        assert (1, 2999) == (queue.depth, queue.deferred_count)

    def test_reading_and_searching_at_the_same_time_find_each_message_once(
        self, journal: Journal
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        for number in range(3000):
            journal.append(str(number), due_ns=WALL_NS + 1 if number % 2 else 0)
        queue.enqueue_released([], journal.store.log.next_seq)

        taken: list[bytes] = []
        is_searching = True
        while is_searching:
            is_searching = queue.find_deferred()
            if queue.load():
                taken += queue.take(1000)
        taken += take_all(queue)
        while queue.deferred_count:
            queue.enqueue_due(WALL_NS + 1)
        taken += take_all(queue)
        assert [*range(0, 3000, 2), *range(1, 3000, 2)] == [int(each) for each in bodies_of(taken)]

    def test_after_a_search_that_failed_the_next_one_finds_everything(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        journal.append(*"ab", due_ns=WALL_NS + 1)
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "deferred_batches", failing)
            queue.enqueue_released([], journal.store.log.next_seq)
            with pytest.raises(StorageError):
                queue.find_deferred()

        queue.find_deferred()
        assert (0, 2) == (queue.depth, queue.deferred_count)

    @pytest.mark.parametrize("window_max", [0, 1, 100])
    def test_deferred_messages_from_the_log_equal_those_from_memory(
        self, journal: Journal, window_max: int
    ) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max)
        journal.publish(queue, *"ab", due_ns=WALL_NS + 5)
        journal.publish(queue, *"cd", due_ns=WALL_NS + 5)
        queue.enqueue_due(WALL_NS + 5)

        again = take_all(queue)
        assert [*"abcd"] == bodies_of(again)
        assert [1] * 4 == attempts_of(again)

    def test_finished_messages_reach_the_cursor_with_report_finished(
        self, journal: Journal
    ) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq)
        journal.publish(queue, *"abc")
        queue.take(3)
        queue.finish(ids_of(first_seq, first_seq + 1))
        assert 1 == journal.progress_told
        assert first_seq == journal.floor

        queue.report_finished()
        assert first_seq + 2 == journal.floor

    def test_after_a_restart_only_unfinished_messages_are_delivered(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq)
        journal.publish(queue, *"abcdef")
        taken = queue.take(6)
        queue.finish(ids_of(first_seq, first_seq + 2, first_seq + 5))
        queue.requeue([taken[1]])
        queue.requeue([taken[3]], due_ns=WALL_NS + 5)
        queue.save_attempts([taken[4]])
        queue.report_finished()
        journal.reopen()

        again = journal.queue(journal.store.log.next_seq)
        assert (2, 1) == (again.depth, again.deferred_count)
        frames = take_all(again)
        assert [*"be"] == bodies_of(frames)
        assert [2, 2] == attempts_of(frames)
        assert (0, 1) == (again.depth, again.deferred_count)
        again.enqueue_due(WALL_NS + 5)
        frames = take_all(again)
        assert ["d"] == bodies_of(frames)
        assert [2] == attempts_of(frames)

    def test_attempts_wrap_after_a_restart(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq)
        journal.publish(queue, "a")
        queue.requeue([wire.with_attempts(queue.take(1)[0], 65535)])
        journal.reopen()

        assert [0] == attempts_of(take_all(journal.queue(journal.store.log.next_seq)))

    def test_clearing_moves_the_cursor(self, journal: Journal) -> None:
        queue = journal.queue(journal.store.log.next_seq, window_max=2)
        journal.publish(queue, *"abcd")
        queue.requeue(queue.take(1), due_ns=WALL_NS)
        queue.finish(ids_of(queue._read_seq - 1))
        queue.clear(journal.store.log.next_seq)
        assert (0, 0) == (queue.depth, queue.deferred_count)

        journal.publish(queue, "e")
        assert ["e"] == bodies_of(take_all(queue))
        journal.reopen()
        assert ["e"] == bodies_of(take_all(journal.queue(journal.store.log.next_seq)))

    def test_skipped_messages_are_not_delivered_and_do_not_count(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq, window_max=0)
        journal.publish(queue, *"ab")
        held_seq, _ = journal.append(*"cd")
        queue.skip(held_seq, held_seq + 2)
        journal.publish(queue, "e")

        assert 3 == queue.depth
        assert [*"abe"] == bodies_of(take_all(queue))

    def test_delete_cursor_removes_the_cursor(self, journal: Journal) -> None:
        journal.queue(journal.store.log.next_seq).delete_cursor()
        journal.reopen()

        assert {} == journal.store.cursors.progress


@pytest.mark.usefixtures("damaged_on_purpose")
class TestOnALogWithHoles:
    """Segments may be damaged, or removed by hand: what is gone is stepped over."""

    @pytest.fixture
    def journal(self) -> Journal:
        return Journal(LogSettings(max_bytes_per_file=300))

    @staticmethod
    def lose_below(journal: Journal, seq: int) -> None:
        """Loses the segments below `seq`; each holds one message."""
        journal.store.log.trim(lambda _, end: end > seq, WALL_NS)
        assert seq == journal.store.log.first_seq

    def test_the_rest_is_delivered(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq, window_max=0)
        for body in "abcd":
            journal.publish(queue, body * 200)
        self.lose_below(journal, first_seq + 2)

        assert ["c" * 200, "d" * 200] == bodies_of(take_all(queue))
        assert (0, 0) == (queue.depth, queue.log_depth)
        assert first_seq + 2 == journal.floor
        assert journal.progress_told

    def test_a_missing_deferred_message_does_not_stop_the_others(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq, window_max=0)
        for body in "abcd":
            journal.publish(queue, body * 200, due_ns=WALL_NS + 5)
        self.lose_below(journal, first_seq + 2)
        queue.enqueue_due(WALL_NS + 5)

        assert ["c" * 200, "d" * 200] == bodies_of(take_all(queue))
        assert 0 == queue.deferred_count
        assert first_seq + 2 == journal.floor

    def test_a_queue_whose_messages_are_missing_is_empty(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq, window_max=0)
        journal.publish(queue, "first")
        journal.publish(queue, "second")
        damage(journal.files, "first")
        damage(journal.files, "second")

        assert not queue.load()
        assert 0 == queue.depth
        assert first_seq + 2 == journal.floor
        journal.publish(queue, "third")
        assert ["third"] == bodies_of(take_all(queue))

    @pytest.mark.parametrize("gone", ["first", "second", "third"])
    def test_missing_messages_of_a_due_run_are_skipped(self, gone: str) -> None:
        """They were read as one run, and each was stored by itself."""
        journal = Journal()
        queue = journal.queue(journal.store.log.next_seq, window_max=0)
        bodies = ["first", "second", "third"]
        journal.publish(queue, "a")
        for body in bodies:
            journal.publish(queue, body, due_ns=WALL_NS + 5)
        assert ["a"] == bodies_of(take_all(queue))
        assert 3 == queue.deferred_count
        damage(journal.files, gone)
        queue.enqueue_due(WALL_NS + 5)

        bodies.remove(gone)
        assert bodies == bodies_of(take_all(queue))
        assert (0, 0) == (queue.depth, queue.deferred_count)

    @pytest.mark.timeout(120)
    def test_missing_messages_before_held_ones_are_skipped(self, journal: Journal) -> None:
        first_seq = journal.store.log.next_seq
        queue = journal.queue(first_seq, window_max=0)
        for body in "ab":
            journal.publish(queue, body * 200)
        for body in "cd":
            journal.append(body * 200)
        self.lose_below(journal, first_seq + 2)

        assert not queue.load()
        assert 0 == queue.depth
        queue.enqueue_released([], journal.store.log.next_seq)
        assert ["c" * 200, "d" * 200] == bodies_of(take_all(queue))
