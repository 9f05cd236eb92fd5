"""The messages of a channel that no subscriber has, in memory.

They are in three places: the window of frames to be delivered next, the deferred messages, and the
deferred messages that have become due. Due messages and the window are delivered in turn, so that
neither delays the other. An ephemeral channel has nothing else: messages that do not fit into the
window are dropped. `log_backlog` adds the log of a lasting channel.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.broker.deferred import Deferred, DeferredRun
from penstock.broker.message_id import seq_of
from penstock.broker.window import Window
from penstock.common.errors import StorageError
from penstock.protocol import frames as wire
from penstock.storage import Run

__all__ = ["Backlog", "Waiting"]

# The most bytes that one `take` hands out, unless a single message is larger.
TAKE_BYTES_MAX = 1 << 20

_NO_LOG = 1 << 63


class Waiting(NamedTuple):
    """A message that no subscriber has, as it will be delivered; not before `due_ns`."""

    frame: bytes
    due_ns: int = 0


class Backlog:
    """See the module's docstring."""

    def __init__(
        self, window_max: int, on_due: Callable[[int], None], on_progress: Callable[[], None]
    ) -> None:
        """`on_due` is told the wall time at which `recall_due` will have something to do.
        `on_progress` is told that something has been finished."""
        self.in_sequence = True  # no redelivery or deferral stands in the window
        self._window = Window()
        self._due = Window()  # deferred messages that are due
        self._is_turn_of_due = True
        self.window_max = window_max  # what it may hold without a subscriber that waits for it
        self._on_due = on_due
        self._on_progress = on_progress
        self._deferred = Deferred(frames_max=None)
        self._cleared_below = 0  # the topic may still hold, and release, what has been dropped

    def offer(self, first_seq: int, frames: list[bytes], due_ns: int, wanted: int) -> None:
        """Takes a batch just released by the topic; `wanted` frames at least find room."""
        if due_ns:
            self._defer(due_ns, first_seq, frames)
        else:
            self._window.extend(frames[: self._room(wanted)])

    def pass_by(self, first_seq: int, count: int) -> bool:
        """Whether a batch just released may be handed out at once, since nothing stands before it.
        If so it counts as taken."""
        return not self._window and not self._due

    def release(self, runs: Iterable[Run], next_seq: int) -> None:
        """Takes what the topic had held back, all of it below `next_seq`."""
        for run in runs:
            if run.first_seq >= self._cleared_below:
                self.offer(run.first_seq, run.frames, run.due_ns, 0)

    def load(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._window or self._due)

    def find_deferred(self) -> bool:
        """Does one step of the search for deferred messages in the unread part of the log. Returns
        whether the search is incomplete. Raises StorageError; the next call retries."""
        return False

    def take(self, count: int) -> list[bytes]:
        """Removes and returns the next frames, of the window or of the due messages: at most
        `count`, and at most about 1 MiB."""
        if self._due and (self._is_turn_of_due or not self._window):
            self._is_turn_of_due = False
            return self._due.take(count, TAKE_BYTES_MAX)
        self._is_turn_of_due = True
        return self._take_queued(count)

    def settle_sequence(self) -> None:
        """Called once what was taken has been handed out: an empty window is in sequence again."""
        self.in_sequence = not self._window and not self._due and not self._deferred.called_count

    def finish(self, ids: list[bytes]) -> None:
        """These have been taken, and are done with."""
        self._on_progress()

    def put_back(self, frames: list[bytes], due_ns: int = 0) -> None:
        """Queues frames that were taken for their next attempt, at `due_ns` or at once."""
        again = [wire.with_attempts(frame, wire.attempts(frame) + 1) for frame in frames]
        if due_ns:
            for frame in again:
                self._defer(due_ns, seq_of(wire.message_id(frame)), [frame])
        else:
            self._leave_sequence()
            self._window.extend(again)

    def recall_due(self, wall_ns: int) -> None:
        """Queues what has come due. Raises StorageError, and tries all of it again when it is next
        called."""
        self._deferred.call(wall_ns)
        self._admit_called()

    def next_due_ns(self) -> int | None:
        """The wall time at which the next deferred message comes due. What is queued already, and
        finds no room in the window, does not count: `load` will see to it."""
        return self._deferred.next_due_ns()

    def peek(self, count: int) -> list[Waiting]:
        """The next messages that are queued, `count` at most. They stay where they are."""
        due = self._due.first(count)
        return [Waiting(frame) for frame in [*due, *self._window.first(count - len(due))]]

    def peek_deferred(self, count: int) -> list[Waiting]:
        """The next messages to come due, `count` at most. They stay where they are."""
        return [
            Waiting(frame, run.due_ns)
            for run in self._deferred.first(count)
            for frame in self._frames_of(run)
        ]

    def cancel(self, message_id: bytes, wall_ns: int) -> bool:
        """Finishes a message that waits for a time. Returns whether there was such a one."""
        if not self._deferred.remove(seq_of(message_id)):
            return False
        self._on_progress()
        return True

    def hasten(self, message_id: bytes, wall_ns: int) -> bool:
        """Queues a message that waits for a time. Returns whether there was such a one."""
        if not self._deferred.hasten(seq_of(message_id)):
            return False
        self._recall_now(wall_ns)
        return True

    def skip(self, first_seq: int, next_seq: int) -> None:
        """These will never be offered: they were dropped while the topic held them."""

    def clear(self, next_seq: int) -> None:
        """Drops everything below `next_seq`, be it given to us or not."""
        self._cleared_below = next_seq
        self._window.clear()
        self._due.clear()
        self.in_sequence = True
        self._deferred.clear()
        self._on_progress()

    @property
    def depth(self) -> int:
        """How many messages are queued; not the deferred ones."""
        in_memory = len(self._window) + len(self._due)
        return in_memory + self._deferred.called_count + self.log_depth

    @property
    def has_more(self) -> bool:
        """Whether it is worth asking for more; `load` tells for sure."""
        return bool(self._window or self._due) or self._deferred.called_count > 0

    @property
    def log_depth(self) -> int:
        """How many of the queued messages are still to be read, in sequence, from the log."""
        return 0

    @property
    def read_seq(self) -> int:
        """Sequence number to read next from the log; above all messages if there is no log."""
        return _NO_LOG

    @property
    def deferred_count(self) -> int:
        """How many messages wait for a time."""
        return len(self._deferred)

    def _take_queued(self, count: int) -> list[bytes]:
        return self._window.take(count, TAKE_BYTES_MAX)

    def _room(self, wanted: int) -> int:
        return max(max(self.window_max, wanted) - len(self._window), 0)

    def _leave_sequence(self) -> None:
        """What joins the window next is not what comes next in the topic."""
        self.in_sequence = False

    def _defer(self, due_ns: int, first_seq: int, frames: list[bytes]) -> None:
        self._deferred.add(due_ns, first_seq, frames)
        self._on_due(due_ns)

    def _recall_now(self, wall_ns: int) -> None:
        self._on_due(wall_ns)  # to try again, should it fail
        self.recall_due(wall_ns)

    def _admit_called(self) -> None:
        """Moves due messages into `_due`, which is delivered in turn with the window."""
        while self._deferred.called_count:
            self._admit_next()

    def _admit_next(self) -> None:
        run = self._deferred.called()
        try:
            frames = self._frames_of(run)
        except StorageError:
            self._deferred.put_off()  # or it would hold up all that is published after it
            raise
        self._leave_sequence()
        self._due.extend(frames)
        self._deferred.pop()

    def _frames_of(self, run: DeferredRun) -> list[bytes]:
        return run.frames if run.frames is not None else self._read_back(run)

    def _read_back(self, run: DeferredRun) -> list[bytes]:
        raise AssertionError("a deferred run without frames, and no log to read them from")
