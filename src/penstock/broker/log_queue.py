"""The queue of a persistent channel: messages in memory and in the topic's log.

The window is the part of the log that is delivered next. A channel that keeps up gets its messages
from publishes; once the window is full the channel falls behind, and refills an empty window from
the log. In both cases first deliveries are in sequence.

A message that is not due yet is in the deferred set, even if the channel has not read the log that
far: a deferred publish joins the set when it is released by the topic, and after a restart or a
seek the others are found with the log's index. `_skipped` prevents the reader from delivering them
a second time.

Each message released to the channel is in exactly one of these places:

    unread       from `_read_seq` on, and not in `_skipped`
    window       frames in memory; requeued messages join at the end
    deferred     not due yet
    due          due, and waiting for room in memory
    due window   due, with its frame in memory
    taken        returned by `take`; `finish` or `requeue` follows
    finished     reported to the cursor journal, at the latest by the next `report_finished`
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice

from penstock.broker.deferred import Deferred, DeferredRun
from penstock.broker.memory_queue import MemoryQueue, PendingMessage
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

__all__ = ["LogQueue"]

# Maximum bytes in the window, in the due window, and in the deferred set. The other messages stay
# in the log: ten thousand messages may be small or large.
HELD_BYTES_MAX = 32 << 20

# Bytes read at a time to find a single deferred message. A larger piece would contain many other
# messages, a smaller one would need several reads. Sequential reads skip the search.
_FINDING_BYTES = 4096

# Maximum runs of due messages loaded at once, and of those that have to be read from the log:
# finding one there can take two milliseconds.
_LOADED_AT_ONCE_MAX = 256
_READ_AT_ONCE_MAX = 16

# Maximum pieces of the log that one `load` reads if none of them has a message to deliver.
_PIECES_AT_ONCE_MAX = 2

# Maximum bytes that one `peek` reads from the log.
_PEEK_BYTES_MAX = 4 * READ_BYTES


class LogQueue:
    """Has the methods of `EphemeralQueue`, and those that move and store a cursor."""

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
        """`on_due` is called with the wall time at which `enqueue_due` will have something to do,
        `on_progress` when there is something to journal. `first_seq` is the start of a new
        channel's cursor; by default the next message that the topic releases. For a channel that
        already has a cursor, all deferred messages are found before this returns.
        """
        self.in_sequence = True
        """Whether the windows hold first deliveries in the order of the topic, and nothing else."""
        self.window_max = window_max
        """Maximum messages in the window while no subscriber waits for them."""
        self._memory = memory = MemoryQueue(Deferred(window_max, HELD_BYTES_MAX), on_due)
        # Aliases: each saves an attribute lookup per call.
        self._window, self._due, self._deferred = memory.window, memory.due, memory.deferred
        self._on_due = on_due
        self._on_progress = on_progress
        self._channel = channel
        self._log = log
        self._cursors = cursors
        self._unreported: list[list[bytes]] = []
        """Ids of finished messages that were not reported to the cursor yet."""
        self._refill_after = 0
        """A window out of sequence may never become empty. It is refilled after this many takes,
        so that messages requeued again and again do not delay the log."""
        self._found_end = -1
        """End of the deferred run that was last read from the log."""
        self._released_seq = released_seq
        self._wall_ns = wall_ns
        self._skipped = RangeSet()
        """Messages from `_read_seq` on that the reader skips: finished ones, and those that are or
        were in the deferred set."""
        self._search: Iterator[list[DeferredBatch]] | None = None
        """An incomplete search for deferred messages in the unread part of the log."""
        self._tracks_deferred = True
        self._read_seq = self._retried_below = 0
        is_known = channel in cursors.progress
        if not is_known:
            cursors.create(channel, released_seq if first_seq is None else first_seq)
        self._progress = cursors.progress[channel]
        if not is_known:
            self._finish_gaps()
        self._start_at_floor()
        if is_known:
            self._search = None
            batches = log.deferred_batches(self._read_seq, released_seq)
            self._defer_batches(chain.from_iterable(batches))

    def enqueue(self, first_seq: int, frames: list[bytes], due_ns: int, wanted: int) -> None:
        """Adds a batch just published; at least `wanted` frames fit into the window."""
        self._released_seq = next_seq = first_seq + len(frames)
        is_behind = self._read_seq != first_seq
        if due_ns and self._tracks_deferred:
            if is_behind:
                self._skipped.add(first_seq, next_seq)
            else:
                self._read_seq = next_seq
            self._memory.defer(due_ns, first_seq, frames)
            return
        if is_behind or due_ns:
            return  # `load` reads it from the log later.
        window = self._window
        if window.size_bytes >= HELD_BYTES_MAX:
            return
        room = max(max(self.window_max, wanted) - len(window), 0)
        taken = frames if room >= len(frames) else frames[:room]
        window.extend(taken)
        self._read_seq += len(taken)

    def try_direct_delivery(self, first_seq: int, count: int) -> bool:
        """Returns whether a batch just published may be delivered at once, because nothing is
        queued before it. If so, it counts as taken."""
        # `in_sequence` is False while due messages are queued.
        if self._read_seq != first_seq or not self.in_sequence or self._window:
            return False
        self._read_seq = self._released_seq = first_seq + count
        return True

    def enqueue_released(self, runs: Iterable[Run], next_seq: int) -> None:
        """Adds the messages that the topic has held back, all of them below `next_seq`. They are
        read from the log later."""
        first_seq, self._released_seq = self._released_seq, next_seq
        self._search_deferred_from(first_seq)

    def track_deferred(self, tracks: bool) -> None:
        """Sets whether deferred messages are moved to the deferred set. A channel that delivers
        nothing does not need that. No message may be in flight."""
        self._tracks_deferred = tracks
        self.restart(self._released_seq)

    def find_deferred(self) -> bool:
        """Does one step of the search for deferred messages in the unread part of the log. Returns
        whether the search is incomplete. Raises StorageError; the next call retries."""
        if self._search is None:
            return False
        try:
            batches = next(self._search, None)
        except StorageError:
            self._search = None
            self._search_deferred_from(self._read_seq)
            raise
        if batches is None:
            self._search = None
        else:
            self._defer_batches(batches)
        return self._search is not None

    def load(self) -> bool:
        """If all messages read before have been taken, reads the next piece of the log into the
        window; if the due window is empty, loads due messages. Returns whether there is anything to
        take: if not, and `has_more`, call it again. Raises StorageError."""
        if self._deferred.due_count and not self._due:
            self._load_due()
        if self._read_seq < self._released_seq and self._needs_refill():
            self._refill()
        return bool(self._window or self._due)

    def take(self, count: int) -> list[bytes]:
        """Removes and returns the next frames: at most `count`, and at most about 1 MiB."""
        memory = self._memory
        taken = memory.take(count)
        if memory.due_is_next:  # They were taken from the window.
            self._refill_after -= len(taken)
        return taken

    def update_in_sequence(self) -> None:
        """To be called after a delivery. An empty queue is in sequence again, because only first
        deliveries follow."""
        self.in_sequence = self._memory.is_empty

    def finish(self, ids: list[bytes]) -> None:
        """Finishes messages that were taken. `report_finished` passes them on to the cursor."""
        if not self._unreported:
            self._on_progress()
        self._unreported.append(ids)

    def requeue(self, frames: list[bytes], due_ns: int = 0) -> None:
        """Queues frames that were taken for their next attempt, at `due_ns` or at once."""
        self.save_attempts(frames, due_ns)
        if not due_ns:
            self._leave_sequence()
        self._memory.requeue(frames, due_ns)

    def save_attempts(self, frames: Iterable[bytes], due_ns: int = 0) -> None:
        """Journals the attempts of these messages, and when they are due again."""
        for frame in frames:
            seq = seq_of(wire.message_id(frame))
            self._cursors.set_retry_state(
                self._channel, seq, RetryState(wire.attempts(frame), due_ns)
            )
        self._on_progress()

    def report_finished(self) -> None:
        """Journals the messages finished since the last call."""
        if self._unreported:
            ids = list(chain.from_iterable(self._unreported))
            self._unreported.clear()
            run = maybe_run(ids)
            if run is not None:
                self._cursors.finish(self._channel, *run)
            else:
                self._cursors.finish_many(self._channel, seqs_of(ids))

    def enqueue_due(self, wall_ns: int) -> None:
        """Queues the deferred messages that are due. Raises StorageError; the next call retries."""
        self._deferred.mark_due(wall_ns)
        self._load_due()

    def next_due_ns(self) -> int | None:
        """The wall time at which the next deferred message becomes due. Due messages that wait for
        room in memory do not count: `load` loads them."""
        return self._deferred.next_due_ns()

    def peek(self, count: int) -> list[PendingMessage]:
        """The next queued messages, at most `count`. They stay in the queue. At most about 1 MiB is
        read from the log, so there may be fewer than `count`. Raises StorageError."""
        peeked = [PendingMessage(frame) for frame in self._due.peek(count)]
        unread_bytes = _PEEK_BYTES_MAX
        for due in self._deferred.peek_due(count - len(peeked)):
            if unread_bytes <= 0:
                return peeked
            frames = self._frames_of(due)
            peeked += map(PendingMessage, frames)
            unread_bytes -= sum(map(len, frames))
        peeked += map(PendingMessage, self._window.peek(count - len(peeked)))
        seq, end = self._read_seq, self._released_seq
        while len(peeked) < count and seq < end and unread_bytes > 0:
            runs = self._log.read(seq)
            for run in runs:
                stored = run.frames[: max(end - run.first_seq, 0)]
                pending = self._open_messages(run.first_seq, stored, run.due_ns)
                peeked += islice((each for _, each in pending), count - len(peeked))
                unread_bytes -= sum(map(len, stored))
            seq = runs[-1].next_seq if runs else end
        return peeked

    def peek_deferred(self, count: int) -> list[PendingMessage]:
        """The next messages to become due, at most `count`. They stay deferred. Raises
        StorageError."""
        return [
            PendingMessage(frame, run.due_ns)
            for run in self._deferred.peek(count)
            for frame in self._frames_of(run)
        ]

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        """Finishes a deferred message. Returns False if there is no such message. Raises
        StorageError."""
        seq = seq_of(message_id)
        run = self._find_stored(message_id)
        if run is None:
            return False
        if not self._deferred.remove(seq) and not self._is_unread_and_deferred(run, wall_ns):
            return False
        self._finish_range(seq, seq + 1)
        self._cursors.flush()
        return True

    def requeue_now(self, message_id: bytes, wall_ns: int) -> bool:
        """Queues a deferred message at once. Returns False if there is no such message. Raises
        StorageError."""
        seq = seq_of(message_id)
        run = self._find_stored(message_id)
        if run is None:
            return False
        if not self._deferred.set_due_now(seq) and not self._is_unread_and_deferred(run, wall_ns):
            return False
        saved = self._progress.retry_states.get(seq)
        self._cursors.set_retry_state(
            self._channel, seq, RetryState(saved.attempts if saved else 0, due_ns=0)
        )
        self._retried_below = max(self._retried_below, seq + 1)
        self._on_progress()
        self._cursors.flush()
        self._on_due(wall_ns)  # Retries, if the next line fails.
        self.enqueue_due(wall_ns)
        return True

    def skip(self, first_seq: int, next_seq: int) -> None:
        """Finishes messages that the topic dropped while it held them back."""
        self._released_seq = next_seq
        self._finish_range(first_seq, next_seq)

    def clear(self, next_seq: int) -> None:
        """Finishes all messages below `next_seq`, also those that the topic still holds back."""
        self._cursors.reset(self._channel, next_seq)
        self._released_seq = next_seq
        self._finish_gaps()
        self._reload()

    # Moving and storing the cursor.

    def seek(self, seq: int) -> None:
        """Moves the cursor: all messages from `seq` on are open again, all below it finished."""
        self._cursors.reset(self._channel, seq)
        self._finish_gaps()
        self._reload()

    def commit(self, seq: int) -> None:
        """Finishes all messages below `seq`."""
        self.report_finished()
        if seq > self._progress.floor:
            self._cursors.finish(self._channel, self._progress.floor, seq)
        self._reload()
        self._cursors.flush()

    def restart(self, released_seq: int) -> None:
        """Reads all unfinished messages from the log again. `released_seq` is the end of the
        messages that the topic has released, if that is beyond those enqueued."""
        self.report_finished()
        self._released_seq = max(self._released_seq, released_seq)
        self._reload()

    def delete_cursor(self) -> None:
        """Deletes the cursor, together with its channel."""
        self._cursors.remove(self._channel)

    @property
    def floor(self) -> int:
        """The first message that is not finished, according to the cursor."""
        return self._progress.floor

    # Figures.

    @property
    def depth(self) -> int:
        """Number of queued messages; deferred messages do not count."""
        return self._memory.depth + self.log_depth

    @property
    def has_more(self) -> bool:
        """Whether `load` may return True."""
        return self._read_seq < self._released_seq or not self._memory.is_empty

    @property
    def log_depth(self) -> int:
        """Number of queued messages that are still to be read, in sequence, from the log."""
        first_seq, next_seq = self._read_seq, self._released_seq
        if first_seq >= next_seq:
            return 0
        return next_seq - first_seq - self._skipped.count(first_seq, next_seq)

    @property
    def read_seq(self) -> int:
        """Sequence number to read next from the log."""
        return self._read_seq

    @property
    def deferred_count(self) -> int:
        """Number of messages that are not due yet."""
        return self._memory.deferred_count

    # The window.

    def _needs_refill(self) -> bool:
        return not self._window or (not self.in_sequence and self._refill_after <= 0)

    def _leave_sequence(self) -> None:
        """To be called before a message is queued that is not the topic's next one."""
        if self.in_sequence:
            self._refill_after = len(self._window)
            self.in_sequence = False

    def _refill(self) -> None:
        """Reads the next piece of the log into the window, and another one if the first had no
        message to deliver."""
        for _ in range(_PIECES_AT_ONCE_MAX):
            self._read_seq = self._skipped.next_missing(self._read_seq)
            if self._read_seq >= self._released_seq or not self._needs_refill():
                return
            length = len(self._window)
            stored = self._log.read(self._read_seq)
            runs = [run for run in stored if run.first_seq < self._released_seq]
            for run in runs:
                self._add_run(run)
            if not runs:
                self._skip_missing(self._read_seq, self._released_seq)
            self._skipped.drop_below(self._read_seq)
            if len(self._window) > length:
                self._refill_after = len(self._window)

    def _add_run(self, run: Run) -> None:
        first_seq = run.first_seq
        next_seq = min(first_seq + len(run.frames), self._released_seq)
        if first_seq > self._read_seq:
            self._skip_missing(self._read_seq, first_seq)
        self._read_seq = next_seq
        frames = run.frames[: next_seq - first_seq]
        if first_seq < self._retried_below or self._skipped.count(first_seq, next_seq):
            self._add_open_messages(first_seq, frames, run.due_ns)
        elif run.due_ns and run.due_ns > self._wall_ns():
            self._memory.defer(run.due_ns, first_seq, frames)
        else:
            self._window.extend(frames)

    def _add_open_messages(self, first_seq: int, frames: list[bytes], due_ns: int) -> None:
        """Adds a run of which some messages may be finished or deferred, or were delivered before
        the last restart."""
        wall_ns = self._wall_ns()
        for seq, pending in self._open_messages(first_seq, frames, due_ns):
            if pending.due_ns > wall_ns:
                self._memory.defer(pending.due_ns, seq, [pending.frame])
            else:
                self._window.extend([pending.frame])

    def _open_messages(
        self, first_seq: int, frames: list[bytes], due_ns: int
    ) -> Iterator[tuple[int, PendingMessage]]:
        """The messages of a run that are not in `_skipped`, with their sequence numbers, attempts
        and due times."""
        retry_states = self._progress.retry_states
        for first, end in self._skipped.gaps(first_seq, first_seq + len(frames)):
            for seq in range(first, end):
                frame, state = frames[seq - first_seq], retry_states.get(seq)
                if state is None:
                    yield seq, PendingMessage(frame, due_ns)
                else:
                    again = wire.with_attempts(frame, state.attempts + 1)
                    yield seq, PendingMessage(again, state.due_ns)

    def _find_stored(self, message_id: bytes) -> Run | None:
        """The message in the log; None if it is of another topic or node."""
        runs = self._log.read(seq_of(message_id), 1)
        return runs[0] if runs and wire.message_id(runs[0].frames[0]) == message_id else None

    def _is_unread_and_deferred(self, run: Run, wall_ns: int) -> bool:
        """Whether the first message of a run is unread, and not due yet."""
        if not self._read_seq <= run.first_seq < self._released_seq:
            return False
        pending = self._open_messages(run.first_seq, run.frames[:1], run.due_ns)
        return any(each.due_ns > wall_ns for _, each in pending)

    # Deferred messages.

    def _load_due(self) -> None:
        """Loads due messages into the due window while there is room, up to a limit; `load` loads
        the others."""
        reads = 0
        for _ in range(_LOADED_AT_ONCE_MAX):
            if not self._deferred.due_count or not self._has_room_for_due():
                break
            run = self._deferred.first_due()
            if run.frames is None:
                reads += 1
                if reads > _READ_AT_ONCE_MAX:
                    break
            try:
                frames = self._frames_of(run)
            except StorageError:
                # An unreadable run must not delay the messages published after it.
                self._deferred.unmark_due()
                raise
            self._leave_sequence()
            self._due.extend(frames)
            self._deferred.pop_due()

    def _has_room_for_due(self) -> bool:
        due = self._due
        return not due or (len(due) < self.window_max and due.size_bytes < HELD_BYTES_MAX)

    def _frames_of(self, run: DeferredRun) -> list[bytes]:
        return run.frames if run.frames is not None else self._read_deferred(run)

    def _read_deferred(self, run: DeferredRun) -> list[bytes]:
        """Reads a deferred run from the log, with the attempts of its next delivery."""
        retry_states = self._progress.retry_states
        frames: list[bytes] = []
        seq, end = run.first_seq, run.first_seq + run.length
        if run.length > 1:
            piece_bytes = READ_BYTES
        else:
            piece_bytes = 1 if seq == self._found_end else _FINDING_BYTES
        self._found_end = end
        while seq < end:
            stored = self._log.read(seq, piece_bytes)
            if not stored or stored[0].first_seq >= end:
                self._skip_missing(seq, end)
                break
            if stored[0].first_seq > seq:
                self._skip_missing(seq, stored[0].first_seq)
            first = stored[0].first_seq
            for seq, frame in enumerate(stored[0].frames[: end - first], first):
                attempts = retry_states[seq].attempts + 1 if seq in retry_states else 1
                frames.append(wire.with_attempts(frame, attempts))
            seq += 1
        return frames

    def _search_deferred_from(self, seq: int) -> None:
        """Starts a search for the unread deferred messages from `seq` on."""
        if not self._tracks_deferred or seq >= self._released_seq:
            return
        if seq < self._retried_below:
            self._defer_requeued(seq)
        batches = self._log.deferred_batches(seq, self._released_seq)
        self._search = chain(self._search or (), batches)

    def _defer_requeued(self, first_seq: int) -> None:
        """Moves unread messages that were requeued, and are not due yet, to the deferred set."""
        wall_ns, end, skipped = self._wall_ns(), self._released_seq, self._skipped
        self._defer_unread(
            [
                (state.due_ns, seq, 1)
                for seq, state in self._progress.retry_states.items()
                if state.due_ns > wall_ns
                and first_seq <= seq < end
                and not skipped.covers(seq, seq + 1)
            ]
        )

    def _defer_batches(self, batches: Iterable[DeferredBatch]) -> None:
        """Moves unread messages that were published deferred, and are not due yet, to the deferred
        set; not those that were delivered or requeued, whose due times are in the journal."""
        wall_ns, released_seq, retry_states = (
            self._wall_ns(),
            self._released_seq,
            self._progress.retry_states,
        )
        self._defer_unread(
            [
                (due_ns, first, end - first)
                for first_seq, next_seq, due_ns in batches
                if due_ns > wall_ns
                for gap in self._skipped.gaps(
                    max(first_seq, self._read_seq), min(next_seq, released_seq)
                )
                for first, end in _without(gap, retry_states)
            ]
        )

    def _defer_unread(self, runs: list[tuple[int, int, int]]) -> None:
        """Moves unread runs, each `(due_ns, first_seq, length)`, to the deferred set."""
        if runs:
            self._skipped.update((first, first + length) for _, first, length in runs)
            self._deferred.add_stored(runs)
            self._on_due(min(due_ns for due_ns, _, _ in runs))

    # The cursor.

    def _reload(self) -> None:
        """Drops all messages in memory, and reads from the cursor's floor again."""
        self._memory.clear()
        self.in_sequence = True
        self._on_progress()
        self._unreported.clear()
        self._start_at_floor()

    def _start_at_floor(self) -> None:
        """Starts reading at the cursor's floor. No messages may be in memory."""
        self._progress = self._cursors.progress[self._channel]
        self._read_seq = self._progress.floor
        # Unread messages from here on have not been delivered before.
        self._retried_below = max(self._progress.retry_states, default=-1) + 1
        self._skipped = RangeSet()
        self._skipped.update(self._progress.finished_ranges())
        self._search = None
        self._search_deferred_from(self._read_seq)

    def _finish_gaps(self) -> None:
        """Finishes the gaps of the log."""
        for first_seq, end in self._log.gaps(self._progress.floor, self._log.next_seq):
            self._cursors.finish(self._channel, first_seq, end)
            self._on_progress()

    def _skip_missing(self, first_seq: int, next_seq: int) -> None:
        """Finishes messages that the log no longer has (damaged, or removed by hand)."""
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
