"""Messages of a channel in memory, and the queue of an ephemeral channel.

`MemoryQueue` holds messages that no subscriber has, in three places: the window (messages to be
delivered next), the deferred messages, and the due window (deferred messages that have become due).
The window and the due window are delivered alternately, so that neither delays the other.

`EphemeralQueue` has nothing else: messages that do not fit into the window are dropped. `LogQueue`
(module `log_queue`) combines a `MemoryQueue` with the topic's log.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.broker.deferred import Deferred
from penstock.broker.message_id import seq_of
from penstock.protocol import frames as wire
from penstock.storage import Run

__all__ = ["EphemeralQueue", "MemoryQueue", "PendingMessage", "Window"]

# Maximum bytes of one `take`, unless a single message is larger.
TAKE_BYTES_MAX = 1 << 20

# Maximum frames, and bytes of frames, that a window keeps in memory after they were taken.
_TAKEN_MAX = 1024
_TAKEN_BYTES_MAX = 1 << 20

_NO_LOG = 1 << 63


class PendingMessage(NamedTuple):
    """A message that no subscriber has, as it will be delivered; not before `due_ns`."""

    frame: bytes
    due_ns: int = 0


class Window:
    """A first-in first-out queue of frames, filled and emptied in batches.

    A list and the number of frames taken from it: adding and taking are list operations, which cost
    little per frame. Taken frames are deleted from time to time.
    """

    __slots__ = ("_frames", "_taken", "_taken_bytes", "size_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._taken = self._taken_bytes = 0
        self.size_bytes = 0
        """Size of the frames that are not taken yet."""

    def __len__(self) -> int:
        return len(self._frames) - self._taken

    def extend(self, frames: Sequence[bytes]) -> None:
        """Adds frames at the end."""
        self._frames += frames
        self.size_bytes += sum(map(len, frames))

    def take(self, count: int, bytes_max: int) -> list[bytes]:
        """Removes and returns the first frames: at most `count`, and at most `bytes_max` bytes
        unless the first frame is larger."""
        frames = self._frames[self._taken : self._taken + count]
        size_bytes = sum(map(len, frames))
        if size_bytes > bytes_max:
            del frames[_count_within(frames, bytes_max) :]
            size_bytes = sum(map(len, frames))
        self._taken += len(frames)
        self._taken_bytes += size_bytes
        self.size_bytes -= size_bytes
        if self._taken == len(self._frames):
            self.clear()
        elif self._taken >= _TAKEN_MAX or self._taken_bytes >= _TAKEN_BYTES_MAX:
            del self._frames[: self._taken]
            self._taken = self._taken_bytes = 0
        return frames

    def peek(self, count: int) -> list[bytes]:
        """The first `count` frames, which stay in the window."""
        return self._frames[self._taken : self._taken + count]

    def clear(self) -> None:
        """Drops all frames."""
        self._frames = []
        self._taken = self._taken_bytes = self.size_bytes = 0


def _count_within(frames: list[bytes], bytes_max: int) -> int:
    """Number of leading frames that fit into `bytes_max`; at least one."""
    count = total = 0
    for frame in frames:
        total += len(frame)
        if total > bytes_max:
            break
        count += 1
    return max(count, 1)


class MemoryQueue:
    """Window, deferred messages and due window of one channel."""

    __slots__ = ("_on_due", "deferred", "due", "due_is_next", "window")

    def __init__(self, deferred: Deferred, on_due: Callable[[int], None]) -> None:
        """`on_due` is called with the wall time at which deferred messages become due."""
        self.window = Window()
        self.deferred = deferred
        self.due = Window()
        self.due_is_next = True
        """Whether the due window has its turn. After `take`: whether it took from `window`."""
        self._on_due = on_due

    def take(self, count: int) -> list[bytes]:
        """Removes and returns the next frames of one of the windows: at most `count`, and at most
        about 1 MiB."""
        if self.due and (self.due_is_next or not self.window):
            self.due_is_next = False
            return self.due.take(count, TAKE_BYTES_MAX)
        self.due_is_next = True
        return self.window.take(count, TAKE_BYTES_MAX)

    def defer(self, due_ns: int, first_seq: int, frames: list[bytes]) -> None:
        """Keeps frames until `due_ns`."""
        self.deferred.add(due_ns, first_seq, frames)
        self._on_due(due_ns)

    def requeue(self, frames: list[bytes], due_ns: int) -> None:
        """Queues frames for their next attempt, at `due_ns` or, if it is 0, at once."""
        again = [wire.with_attempts(frame, wire.attempts(frame) + 1) for frame in frames]
        if due_ns:
            for frame in again:
                self.defer(due_ns, seq_of(wire.message_id(frame)), [frame])
        else:
            self.window.extend(again)

    def clear(self) -> None:
        """Drops all messages."""
        self.window.clear()
        self.due.clear()
        self.deferred.clear()

    @property
    def has_ready(self) -> bool:
        """Whether `take` would return a frame."""
        return bool(self.window or self.due)

    @property
    def is_empty(self) -> bool:
        """Whether no message is queued; deferred messages do not count until they are due."""
        return not self.window and not self.due and not self.deferred.due_count

    @property
    def depth(self) -> int:
        """Number of queued messages; deferred messages do not count until they are due."""
        return len(self.window) + len(self.due) + self.deferred.due_count

    @property
    def deferred_count(self) -> int:
        """Number of messages that are not due yet."""
        return len(self.deferred)


class EphemeralQueue:
    """The queue of an ephemeral channel, or of a channel of an ephemeral topic."""

    def __init__(
        self,
        window_max: int,
        on_due: Callable[[int], None],
        on_progress: Callable[[], None],
        first_seq: int = 0,
    ) -> None:
        """`on_due` is called with the wall time at which `enqueue_due` will have something to do,
        `on_progress` when a message was finished. Messages below `first_seq` are not queued."""
        self.in_sequence = True
        """Whether the windows hold first deliveries in the order of the topic, and nothing else."""
        self.window_max = window_max
        """Maximum messages in the window while no subscriber waits for them."""
        self._on_due = on_due
        self._on_progress = on_progress
        self._memory = MemoryQueue(Deferred(frames_max=None), on_due)
        self._cleared_below = (
            first_seq  # The topic may release messages that were dropped by `clear`.
        )

    def enqueue(self, first_seq: int, frames: list[bytes], due_ns: int, wanted: int) -> None:
        """Adds a batch just published; at least `wanted` frames fit into the window."""
        memory = self._memory
        if due_ns:
            memory.defer(due_ns, first_seq, frames)
        else:
            room = max(max(self.window_max, wanted) - len(memory.window), 0)
            memory.window.extend(frames[:room])

    def try_direct_delivery(self, first_seq: int, count: int) -> bool:
        """Returns whether a batch just published may be delivered at once, because nothing is
        queued before it. If so, it counts as taken."""
        return not self._memory.has_ready

    def enqueue_released(self, runs: Iterable[Run], next_seq: int) -> None:
        """Adds messages that the topic has held back, all of them below `next_seq`."""
        for run in runs:
            if run.first_seq >= self._cleared_below:
                self.enqueue(run.first_seq, run.frames, run.due_ns, 0)

    def load(self) -> bool:
        """Returns whether there is anything to take."""
        return self._memory.has_ready

    def find_deferred(self) -> bool:
        """All deferred messages are in memory: returns False, for a complete search."""
        return False

    def take(self, count: int) -> list[bytes]:
        """Removes and returns the next frames: at most `count`, and at most about 1 MiB."""
        return self._memory.take(count)

    def update_in_sequence(self) -> None:
        """To be called after a delivery. An empty queue is in sequence again, because only first
        deliveries follow."""
        self.in_sequence = self._memory.is_empty

    def finish(self, ids: list[bytes]) -> None:
        """Finishes messages that were taken."""
        self._on_progress()

    def requeue(self, frames: list[bytes], due_ns: int = 0) -> None:
        """Queues frames that were taken for their next attempt, at `due_ns` or at once."""
        if not due_ns:
            self.in_sequence = False
        self._memory.requeue(frames, due_ns)

    def enqueue_due(self, wall_ns: int) -> None:
        """Queues the deferred messages that are due."""
        deferred = self._memory.deferred
        deferred.mark_due(wall_ns)
        while deferred.due_count:
            frames = deferred.first_due().frames
            assert frames is not None
            self.in_sequence = False
            self._memory.due.extend(frames)
            deferred.pop_due()

    def next_due_ns(self) -> int | None:
        """The wall time at which the next deferred message becomes due."""
        return self._memory.deferred.next_due_ns()

    def peek(self, count: int) -> list[PendingMessage]:
        """The next queued messages, at most `count`. They stay in the queue."""
        due = self._memory.due.peek(count)
        queued = self._memory.window.peek(count - len(due))
        return [PendingMessage(frame) for frame in [*due, *queued]]

    def peek_deferred(self, count: int) -> list[PendingMessage]:
        """The next messages to become due, at most `count`. They stay deferred."""
        return [
            PendingMessage(frame, run.due_ns)
            for run in self._memory.deferred.peek(count)
            for frame in run.frames or ()
        ]

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        """Finishes a deferred message. Returns False if there is no such message."""
        if not self._memory.deferred.remove(seq_of(message_id)):
            return False
        self._on_progress()
        return True

    def requeue_now(self, message_id: bytes, wall_ns: int) -> bool:
        """Queues a deferred message at once. Returns False if there is no such message."""
        if not self._memory.deferred.set_due_now(seq_of(message_id)):
            return False
        self._on_due(wall_ns)
        self.enqueue_due(wall_ns)
        return True

    def skip(self, first_seq: int, next_seq: int) -> None:
        """The topic dropped these messages while it held them back: nothing to do."""

    def clear(self, next_seq: int) -> None:
        """Drops all messages below `next_seq`, also those that the topic still holds back."""
        self._cleared_below = next_seq
        self._memory.clear()
        self.in_sequence = True
        self._on_progress()

    @property
    def depth(self) -> int:
        """Number of queued messages; deferred messages do not count."""
        return self._memory.depth

    @property
    def has_more(self) -> bool:
        """Whether `load` may return True."""
        return not self._memory.is_empty

    @property
    def read_seq(self) -> int:
        """Sequence number to read next from the log: above all messages, as there is no log."""
        return _NO_LOG

    @property
    def deferred_count(self) -> int:
        """Number of messages that are not due yet."""
        return self._memory.deferred_count
