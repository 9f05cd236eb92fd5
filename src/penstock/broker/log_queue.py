"""The messages of a lasting channel that no subscriber has: in memory, and in the topic's log.

The window is the near end of what the log holds. At the tail it is fed by publishes as they come;
once it is full the channel falls behind, and the window is filled from the log when it has been
emptied. Either way first deliveries are in sequence.

A message that is not due yet is in the deferred set, even if the channel has not read the log that
far: a deferred publish joins the set when it is released, and after a restart or a seek the others
are found by the log's index. `_skipped` prevents the reader from delivering them a second time.

Each message released to the channel is in exactly one of these places:

    behind       from `_read_seq` on, and not in `_skipped`: still to be read from the log
    window       frames in memory; redeliveries join at the end
    deferred     waiting for a time
    called       due, and waiting for room in memory
    due          due, with its frame in memory
    taken        handed out by `take`: to be told to `finish` or to `put_back`
    finished     told to the cursor journal, at the latest with the next `report_finished`
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice

from penstock.broker.deferred import Deferred, DeferredRun
from penstock.broker.memory_queue import Backlog, Waiting
from penstock.broker.message_id import maybe_run, seq_of, seqs_of
from penstock.common.errors import StorageError
from penstock.protocol import frames as wire
from penstock.storage import (
    READ_BYTES,
    Cursors,
    DeferredBatch,
    RangeSet,
    RetryState,
    Run,
    TopicLog,
    to_ranges,
)

__all__ = ["LogBacklog"]

# When so many bytes are held ahead of the readers, or until they are due, the rest waits in the
# log: ten thousand messages may be small or large.
HELD_BYTES_MAX = 32 << 20

# How much is read at a time to find a message that was deferred alone: a larger piece would be full
# of others, a smaller one makes many reads of it. One that follows on the last needs no finding.
_FINDING_BYTES = 4096

# Maximum runs of due messages that are loaded at once, and of those that have to be read: finding
# one in the log can take two milliseconds.
_ADMITTED_AT_ONCE_MAX = 256
_READ_BACK_AT_ONCE_MAX = 16

# Maximum pieces of the log that one `load` reads if none of them has a message to deliver.
_READS_AT_ONCE_MAX = 2

# The most that is read from the log to be looked at.
_PEEK_BYTES_MAX = 4 * READ_BYTES


class LogBacklog(Backlog):
    """See the module's docstring."""

    def __init__(
        self,
        channel: str,
        log: TopicLog,
        cursors: Cursors,
        released_seq: int,
        window_max: int,
        on_due: Callable[[int], None],
        on_progress: Callable[[], None],
        wall_ns: Callable[[], int],
        *,
        first_seq: int | None = None,
    ) -> None:
        """`on_progress` is told when there is something to journal. `first_seq` is where the
        cursor of a new channel begins; by default at the next message that the topic releases. For
        a channel that already has a cursor, all deferred messages are found before this returns.
        """
        super().__init__(window_max, on_due, on_progress)
        self._deferred = Deferred(window_max, HELD_BYTES_MAX)
        self._channel = channel
        self._log = log
        self._cursors = cursors
        self._finished: list[list[bytes]] = []  # ids that the cursor has not been told of yet
        # A window out of sequence may never become empty. Once so many of its frames are taken, all
        # that were read are, and more is: or those requeued again and again would hold up the log.
        self._refill_after = 0
        self._read_back_end = -1  # where the run ended that was last read back
        self._released_seq = released_seq
        self._wall_ns = wall_ns
        self._skipped = RangeSet()
        """Messages from `_read_seq` on that the reader skips: finished ones, and those that are or
        were in the deferred set."""
        self._search: Iterator[list[DeferredBatch]] | None = None
        """A search for deferred messages in the unread part of the log that is incomplete."""
        self._tracks_deferred = True
        self._read_seq = self._noted_below = 0
        is_known = channel in cursors.progress
        if not is_known:
            cursors.create(channel, released_seq if first_seq is None else first_seq)
        self._progress = cursors.progress[channel]
        if not is_known:
            self._finish_gaps()
        self._begin_at_floor()
        if is_known:
            self._search = None
            batches = log.deferred_batches(self._read_seq, released_seq)
            self._claim(chain.from_iterable(batches))

    def offer(self, first_seq: int, frames: list[bytes], due_ns: int, wanted: int) -> None:
        self._released_seq = next_seq = first_seq + len(frames)
        is_behind = self._read_seq != first_seq
        if due_ns and self._tracks_deferred:
            if is_behind:
                self._skipped.add(first_seq, next_seq)
            else:
                self._read_seq = next_seq
            self._defer(due_ns, first_seq, frames)
            return
        if is_behind or due_ns:
            return  # these will be read from the log in their turn
        room = self._room(wanted)
        taken = frames if room >= len(frames) else frames[:room]
        self._window.extend(taken)
        self._read_seq += len(taken)

    def pass_by(self, first_seq: int, count: int) -> bool:
        # While messages that came due are waiting, the window is not in sequence.
        if self._read_seq != first_seq or not self.in_sequence or self._window:
            return False
        self._read_seq = self._released_seq = first_seq + count
        return True

    def release(self, runs: Iterable[Run], next_seq: int) -> None:
        first_seq, self._released_seq = self._released_seq, next_seq
        self._search_from(first_seq)

    def track_deferred(self, tracks: bool) -> None:
        """Sets whether deferred messages are moved to the deferred set. A channel that delivers
        nothing does not need that. No message may be in flight."""
        self._tracks_deferred = tracks
        self.restart(self._released_seq)

    def find_deferred(self) -> bool:
        if self._search is None:
            return False
        try:
            batches = next(self._search, None)
        except StorageError:
            self._search = None
            self._search_from(self._read_seq)
            raise
        if batches is None:
            self._search = None
        else:
            self._claim(batches)
        return self._search is not None

    def load(self) -> bool:
        """If all messages read before have been taken, reads the next piece of the log into the
        window; if there are no due messages in memory, loads some. Returns whether there is
        anything to take: if not, and `has_more`, call it again."""
        if self._deferred.called_count and not self._due:
            self._admit_called()
        if self._read_seq < self._released_seq and self._is_to_be_filled():
            self._fill()
        return super().load()

    def finish(self, ids: list[bytes]) -> None:
        if not self._finished:
            self._on_progress()
        self._finished.append(ids)

    def put_back(self, frames: list[bytes], due_ns: int = 0) -> None:
        self.note(frames, due_ns)
        super().put_back(frames, due_ns)

    def note(self, frames: Iterable[bytes], due_ns: int = 0) -> None:
        """Tells the cursor how often these have been delivered, and when they are due again."""
        for frame in frames:
            seq = seq_of(wire.message_id(frame))
            self._cursors.set_retry_state(
                self._channel, seq, RetryState(wire.attempts(frame), due_ns)
            )
        self._on_progress()

    def report_finished(self) -> None:
        """Tells the cursor what has been finished since it was last told."""
        if self._finished:
            ids = list(chain.from_iterable(self._finished))
            self._finished.clear()
            run = maybe_run(ids)
            if run is not None:
                self._cursors.finish(self._channel, *run)
            else:
                self._cursors.finish_many(self._channel, seqs_of(ids))

    def peek(self, count: int) -> list[Waiting]:
        """Of those in the log only about a mebibyte is read; fewer than `count` may come then."""
        peeked = [Waiting(frame) for frame in self._due.first(count)]
        unread_bytes = _PEEK_BYTES_MAX
        for called in self._deferred.first_called(count - len(peeked)):
            if unread_bytes <= 0:
                return peeked
            frames = self._frames_of(called)
            peeked += map(Waiting, frames)
            unread_bytes -= sum(map(len, frames))
        peeked += map(Waiting, self._window.first(count - len(peeked)))
        seq, end = self._read_seq, self._released_seq
        while len(peeked) < count and seq < end and unread_bytes > 0:
            runs = self._log.read(seq)
            for run in runs:
                stored = run.frames[: max(end - run.first_seq, 0)]
                waiting = self._open_messages(run.first_seq, stored, run.due_ns)
                peeked += islice((each for _, each in waiting), count - len(peeked))
                unread_bytes -= sum(map(len, stored))
            seq = runs[-1].next_seq if runs else end
        return peeked

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        seq = seq_of(message_id)
        run = self._maybe_stored(message_id)
        if run is None:
            return False
        if not self._deferred.remove(seq) and not self._is_unread_and_deferred(run, wall_ns):
            return False
        self._finish_range(seq, seq + 1)
        self._cursors.flush()
        return True

    def hasten(self, message_id: bytes, wall_ns: int) -> bool:
        seq = seq_of(message_id)
        run = self._maybe_stored(message_id)
        if run is None:
            return False
        if not self._deferred.hasten(seq) and not self._is_unread_and_deferred(run, wall_ns):
            return False
        noted = self._progress.retry_states.get(seq)
        self._cursors.set_retry_state(
            self._channel, seq, RetryState(noted.attempts if noted else 0, due_ns=0)
        )
        self._noted_below = max(self._noted_below, seq + 1)
        self._on_progress()
        self._cursors.flush()
        self._recall_now(wall_ns)
        return True

    def skip(self, first_seq: int, next_seq: int) -> None:
        self._released_seq = next_seq
        self._finish_range(first_seq, next_seq)

    def clear(self, next_seq: int) -> None:
        self._cursors.reset(self._channel, next_seq)
        self._released_seq = next_seq
        self._finish_gaps()
        self._read_again()

    def seek(self, seq: int) -> None:
        """Moves the cursor: all from `seq` on is open again, and all below it finished."""
        self._cursors.reset(self._channel, seq)
        self._finish_gaps()
        self._read_again()

    def commit(self, seq: int) -> None:
        """Finishes everything below `seq`."""
        self.report_finished()
        if seq > self._progress.floor:
            self._cursors.finish(self._channel, self._progress.floor, seq)
        self._read_again()
        self._cursors.flush()

    def restart(self, released_seq: int) -> None:
        """Reads every unfinished message from the log again. `released_seq` is the end of the
        messages that the topic has released, if that is beyond those offered."""
        self.report_finished()
        self._released_seq = max(self._released_seq, released_seq)
        self._read_again()

    @property
    def floor(self) -> int:
        """The first message that the cursor knows to be open."""
        return self._progress.floor

    def forget(self) -> None:
        """Deletes the cursor: the channel is no more."""
        self._cursors.remove(self._channel)

    @property
    def has_more(self) -> bool:
        return self._read_seq < self._released_seq or super().has_more

    @property
    def log_depth(self) -> int:
        first_seq, next_seq = self._read_seq, self._released_seq
        if first_seq >= next_seq:
            return 0
        return next_seq - first_seq - self._skipped.count(first_seq, next_seq)

    @property
    def read_seq(self) -> int:
        return self._read_seq

    def _room(self, wanted: int) -> int:
        return 0 if self._window.size_bytes >= HELD_BYTES_MAX else super()._room(wanted)

    def _take_queued(self, count: int) -> list[bytes]:
        taken = super()._take_queued(count)
        self._refill_after -= len(taken)
        return taken

    def _is_to_be_filled(self) -> bool:
        return not self._window or (not self.in_sequence and self._refill_after <= 0)

    def _leave_sequence(self) -> None:
        if self.in_sequence:
            self._refill_after = len(self._window)
        super()._leave_sequence()

    def _admit_called(self) -> None:
        """Loads due messages while there is room, up to a limit; `load` loads the others."""
        reads = 0
        for _ in range(_ADMITTED_AT_ONCE_MAX):
            if not self._deferred.called_count or not self._has_room_for_called():
                break
            if self._deferred.called().frames is None:
                reads += 1
                if reads > _READ_BACK_AT_ONCE_MAX:
                    break
            self._admit_next()

    def _has_room_for_called(self) -> bool:
        due = self._due
        return not due or (len(due) < self.window_max and due.size_bytes < HELD_BYTES_MAX)

    def _fill(self) -> None:
        """Reads the next piece of the log into the window, and another one if the first had no
        message to deliver."""
        for _ in range(_READS_AT_ONCE_MAX):
            self._read_seq = self._skipped.next_missing(self._read_seq)
            if self._read_seq >= self._released_seq or not self._is_to_be_filled():
                return
            length = len(self._window)
            stored = self._log.read(self._read_seq)
            runs = [run for run in stored if run.first_seq < self._released_seq]
            for run in runs:
                self._load_run(run)
            if not runs:
                self._lose(self._read_seq, self._released_seq)
            self._skipped.drop_below(self._read_seq)
            if len(self._window) > length:
                self._refill_after = len(self._window)

    def _load_run(self, run: Run) -> None:
        first_seq = run.first_seq
        next_seq = min(first_seq + len(run.frames), self._released_seq)
        if first_seq > self._read_seq:
            self._lose(self._read_seq, first_seq)
        self._read_seq = next_seq
        frames = run.frames[: next_seq - first_seq]
        if first_seq < self._noted_below or self._skipped.count(first_seq, next_seq):
            self._revisit(first_seq, frames, run.due_ns)
        elif run.due_ns and run.due_ns > self._wall_ns():
            self._defer(run.due_ns, first_seq, frames)
        else:
            self._window.extend(frames)

    def _revisit(self, first_seq: int, frames: list[bytes], due_ns: int) -> None:
        """Loads a run of which some messages may be finished or deferred, or were delivered before
        the last restart."""
        wall_ns = self._wall_ns()
        for seq, waiting in self._open_messages(first_seq, frames, due_ns):
            if waiting.due_ns > wall_ns:
                self._defer(waiting.due_ns, seq, [waiting.frame])
            else:
                self._window.extend([waiting.frame])

    def _open_messages(
        self, first_seq: int, frames: list[bytes], due_ns: int
    ) -> Iterator[tuple[int, Waiting]]:
        """The messages of a run that are not in `_skipped`, with their sequence numbers and retry
        state."""
        notes = self._progress.retry_states
        for first, end in self._skipped.gaps(first_seq, first_seq + len(frames)):
            for seq in range(first, end):
                frame, note = frames[seq - first_seq], notes.get(seq)
                if note is None:
                    yield seq, Waiting(frame, due_ns)
                else:
                    yield seq, Waiting(wire.with_attempts(frame, note.attempts + 1), note.due_ns)

    def _maybe_stored(self, message_id: bytes) -> Run | None:
        """The message as the log has it; None if it is of another topic or node."""
        runs = self._log.read(seq_of(message_id), 1)
        return runs[0] if runs and wire.message_id(runs[0].frames[0]) == message_id else None

    def _is_unread_and_deferred(self, run: Run, wall_ns: int) -> bool:
        """Whether the first message of a run is still to be read by us, and will have to wait."""
        if not self._read_seq <= run.first_seq < self._released_seq:
            return False
        waiting = self._open_messages(run.first_seq, run.frames[:1], run.due_ns)
        return any(each.due_ns > wall_ns for _, each in waiting)

    def _read_back(self, run: DeferredRun) -> list[bytes]:
        """The frames of a deferred run that waits in the log, as they are to be delivered next."""
        notes = self._progress.retry_states
        frames: list[bytes] = []
        seq, end = run.first_seq, run.first_seq + run.length
        if run.length > 1:
            piece_bytes = READ_BYTES
        else:
            piece_bytes = 1 if seq == self._read_back_end else _FINDING_BYTES
        self._read_back_end = end
        while seq < end:
            stored = self._log.read(seq, piece_bytes)
            if not stored or stored[0].first_seq >= end:
                self._lose(seq, end)
                break
            if stored[0].first_seq > seq:
                self._lose(seq, stored[0].first_seq)
            first = stored[0].first_seq
            for seq, frame in enumerate(stored[0].frames[: end - first], first):
                attempts = notes[seq].attempts + 1 if seq in notes else 1
                frames.append(wire.with_attempts(frame, attempts))
            seq += 1
        return frames

    def _read_again(self) -> None:
        """Drops all messages in memory, and reads from the cursor's floor again."""
        super().clear(self._progress.floor)
        self._finished.clear()
        self._begin_at_floor()

    def _begin_at_floor(self) -> None:
        """Starts reading at the cursor's floor. No messages may be in memory."""
        self._progress = self._cursors.progress[self._channel]
        self._read_seq = self._progress.floor
        # Unread messages from here on have not been delivered before.
        self._noted_below = max(self._progress.retry_states, default=-1) + 1
        self._skipped = RangeSet()
        self._skipped.update(self._progress.finished_ranges())
        self._search = None
        self._search_from(self._read_seq)

    def _search_from(self, seq: int) -> None:
        """Starts a search for the unread deferred messages from `seq` on."""
        if not self._tracks_deferred or seq >= self._released_seq:
            return
        if seq < self._noted_below:
            self._claim_noted(seq)
        batches = self._log.deferred_batches(seq, self._released_seq)
        self._search = chain(self._search or (), batches)

    def _claim_noted(self, first_seq: int) -> None:
        """Moves requeued messages that are not due yet from the reader to the deferred set."""
        wall_ns, end, skipped = self._wall_ns(), self._released_seq, self._skipped
        self._set_apart(
            [
                (note.due_ns, seq, 1)
                for seq, note in self._progress.retry_states.items()
                if note.due_ns > wall_ns
                and first_seq <= seq < end
                and not skipped.covers(seq, seq + 1)
            ]
        )

    def _claim(self, batches: Iterable[DeferredBatch]) -> None:
        """Moves deferred messages that are not due yet from the reader to the deferred set, except
        those that were recalled or delivered before: their due times are in the journal."""
        wall_ns, released_seq, notes = (
            self._wall_ns(),
            self._released_seq,
            self._progress.retry_states,
        )
        self._set_apart(
            [
                (due_ns, first, end - first)
                for first_seq, next_seq, due_ns in batches
                if due_ns > wall_ns
                for gap in self._skipped.gaps(
                    max(first_seq, self._read_seq), min(next_seq, released_seq)
                )
                for first, end in _without(gap, notes)
            ]
        )

    def _set_apart(self, runs: list[tuple[int, int, int]]) -> None:
        """Moves runs, `(due_ns, first_seq, length)` each, from the reader to the deferred set."""
        if runs:
            self._skipped.update((first, first + length) for _, first, length in runs)
            self._deferred.add_stored(runs)
            self._on_due(min(due_ns for due_ns, _, _ in runs))

    def _finish_gaps(self) -> None:
        """Marks gaps in the log as finished."""
        for first_seq, end in self._log.gaps(self._progress.floor, self._log.next_seq):
            self._cursors.finish(self._channel, first_seq, end)
            self._on_progress()

    def _lose(self, first_seq: int, next_seq: int) -> None:
        """The log no longer has these (damaged, or removed by hand): the cursor steps over them."""
        self._finish_range(first_seq, next_seq)
        self._read_seq = max(self._read_seq, next_seq)

    def _finish_range(self, first_seq: int, next_seq: int) -> None:
        self._cursors.finish(self._channel, first_seq, next_seq)
        self._skipped.add(max(first_seq, self._read_seq), next_seq)
        self._on_progress()


def _without(numbers: tuple[int, int], excluded: Collection[int]) -> list[tuple[int, int]]:
    """The parts of a range that remain without the excluded numbers."""
    first, end = numbers
    if not excluded:
        return [numbers]
    return to_ranges([number for number in range(first, end) if number not in excluded])
