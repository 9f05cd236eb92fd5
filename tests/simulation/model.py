"""A simple model of the state of topics and channels.

A message is identified by its sequence number. In each channel it is open or finished; an open
message is queued, deferred, or in flight to one consumer. The model follows the actions of clients
and operators and the stored messages. It checks each delivery, and predicts the statistics.

Times limit the guarantees: a message finished a moment ago may be open again after a crash, and an
unsynced one may be lost in a power loss. `aftermath` uses them.
"""

from collections.abc import Callable, Iterable

from tests.simulation.connection import Connection
from tests.simulation.violation import ViolationError

from penstock.broker.subscriber import DEADLINE_GRAIN_NS
from penstock.broker.topic import Topic
from penstock.protocol.frames import MessageFrame

__all__ = ["LONG_AGO", "Consumer", "Entry", "ModelChannel", "ModelTopic", "Stored"]

LONG_AGO = -(1 << 62)

_SEQ_MASK = (1 << 54) - 1

Note = Callable[[str], object]
"""Called for each change of a message's state, for the coverage."""


class Stored:
    """A message in a topic's log."""

    __slots__ = ("acknowledged", "body", "due_ns", "seq", "stored_ns")

    def __init__(self, seq: int, body: bytes, due_ns: int, stored_ns: int) -> None:
        self.seq = seq
        self.body = body
        self.due_ns = due_ns
        self.stored_ns = stored_ns
        self.acknowledged = False


class Entry:
    """An open message of one channel."""

    __slots__ = (
        "attempts",
        "deadline_ns",
        "delivered",
        "delivered_ns",
        "due_ns",
        "holder",
        "message",
        "noted",
        "noted_ns",
        "saved",
        "saved_due_ns",
        "since_ns",
        "was_due",
    )

    def __init__(self, message: Stored, since_ns: int) -> None:
        self.message = message
        self.due_ns = self.saved_due_ns = message.due_ns
        self.attempts = self.noted = self.saved = 0
        """Attempts: now, at the last requeue, and as far as they are certainly saved."""
        self.noted_ns = LONG_AGO
        self.since_ns = since_ns  # when a seek made it open
        self.delivered = False  # since the channel's cursor was last moved
        self.was_due = False  # was due before the clock was set back
        self.holder: Consumer | None = None
        self.deadline_ns = self.delivered_ns = 0

    def remember(self, attempts: int, due_ns: int) -> None:
        """Restore the state from before the restart."""
        self.attempts = self.noted = self.saved = attempts
        self.due_ns = self.saved_due_ns = due_ns

    def may_time_out(self, now_ns: int) -> bool:
        """Whether its message timeout may have passed."""
        return self.holder is not None and self.deadline_ns - DEADLINE_GRAIN_NS <= now_ns


class Consumer:
    """A subscribed connection."""

    __slots__ = ("channel", "connection", "in_flight", "rdy", "sampling", "timeout_ns")

    def __init__(
        self, connection: Connection, channel: "ModelChannel", timeout_ns: int, *, sampling: bool
    ) -> None:
        self.connection = connection
        self.channel = channel
        self.rdy = 0
        self.timeout_ns = timeout_ns
        self.sampling = sampling
        self.in_flight: dict[bytes, Entry] = {}

    @property
    def can_take_more(self) -> bool:
        return len(self.in_flight) < self.rdy and not self.connection.blocked


class ModelChannel:
    """Expected state of one channel."""

    def __init__(self, topic: "ModelTopic", name: str, now_ns: int, note: Note) -> None:
        self.topic = topic
        self.name = name
        self.is_deleted_with_consumers = name.endswith("#ephemeral")
        self.ephemeral = topic.ephemeral or self.is_deleted_with_consumers  # in memory only
        self.placed_ns = now_ns  # when it was created or moved
        self.deleted = False
        self.paused = False
        self.committing = False
        self.floor = 0  # lower messages are finished, even if the topic still holds them
        self.skipped: set[int] = set()  # finished in advance, though the topic still holds them
        self.noted: dict[int, tuple[int, int]] = {}
        """Attempts and due times of messages that the topic holds again after a power loss."""
        self.open: dict[int, Entry] = {}
        self.finished: dict[int, tuple[Entry, int]] = {}
        """Recently finished messages, and when they were finished."""
        self.closed: dict[int, tuple[Entry, int]] = {}
        """The same, as long as a power loss could make them open again."""
        self.last_first_seq = -1
        self.consumers: list[Consumer] = []
        self.departed: list[Consumer] = []
        self.is_sampled = False  # has, or had, a consumer with a sample rate
        self.message_count = self.delivered_count = self.requeue_count = self.timeout_count = 0
        self._note = note

    @property
    def holders(self) -> list[Consumer]:
        """Consumers that may have messages in flight, disconnected ones included."""
        return self.consumers + self.departed

    @property
    def in_flight_count(self) -> int:
        return sum(len(each.in_flight) for each in self.holders)

    def queued(self) -> list[Entry]:
        """Open messages that are not in flight, deferred ones included."""
        return [entry for entry in self.open.values() if entry.holder is None]

    # Events of a message.

    def take(self, messages: Iterable[Stored], now_ns: int, since_ns: int = LONG_AGO) -> None:
        """Receive messages from the topic."""
        for message in messages:
            if message.seq >= self.floor and message.seq not in self.skipped:
                entry = self.open[message.seq] = Entry(message, since_ns)
                if message.seq in self.noted:
                    entry.remember(*self.noted.pop(message.seq))
                    entry.delivered = entry.attempts > 0
                self._note("deferred" if message.due_ns else "queued")

    def deliver(self, consumer: Consumer, message: MessageFrame, now_ns: int, wall_ns: int) -> None:
        """Check that this delivery is allowed."""
        seq = int(message.id, 16) & _SEQ_MASK
        entry = self.open.get(seq)
        if entry is None or entry.message.body != message.body:
            raise ViolationError(f"{message.body!r} was delivered, and is not open in {self.name}")
        if self.deleted or self.paused or self.committing:
            state = "deleted" if self.deleted else "paused" if self.paused else "committing"
            raise ViolationError(f"{message.body!r} was delivered in {self.name}, which is {state}")
        if entry.holder is not None:
            self.time_out(entry, now_ns)
        if entry.due_ns > wall_ns and not entry.was_due:
            raise ViolationError(f"{message.body!r} was delivered before its time")
        self._count_attempt(entry, message)
        self._check_order(entry)
        entry.holder = consumer
        entry.delivered_ns, entry.deadline_ns = now_ns, now_ns + consumer.timeout_ns
        consumer.in_flight[message.id] = entry
        self.delivered_count += 1

    def _count_attempt(self, entry: Entry, message: MessageFrame) -> None:
        entry.attempts += 1
        if entry.attempts != message.attempts:
            raise ViolationError(
                f"{message.body!r} was delivered with attempts {message.attempts} in {self.name}, "
                f"expected {entry.attempts}"
            )
        if entry.attempts > 1:
            self._note("delivered again")
        else:
            self._note("delivered when due" if entry.due_ns else "delivered")

    def _check_order(self, entry: Entry) -> None:
        message = entry.message
        if not entry.delivered and not message.due_ns:
            if message.seq < self.last_first_seq:
                raise ViolationError(
                    f"{message.body!r} was first delivered out of order in {self.name}"
                )
            self.last_first_seq = message.seq
        entry.delivered = True

    def finish(self, entry: Entry, now_ns: int) -> None:
        """A consumer, or sampling, finishes a message."""
        seq = entry.message.seq
        self.remove_from_flight(entry)
        del self.open[seq]
        self.finished[seq] = self.closed[seq] = entry, now_ns

    def remove_from_flight(self, entry: Entry) -> None:
        """The message is no longer in flight."""
        holder, entry.holder = entry.holder, None
        if holder is not None:
            in_flight = holder.in_flight
            for message_id in [each for each, its in in_flight.items() if its is entry]:
                del in_flight[message_id]

    def requeue_entry(
        self, entry: Entry, now_ns: int, is_old: Callable[[int], bool], due_ns: int = 0
    ) -> None:
        """Queue or defer a message again."""
        self.remove_from_flight(entry)
        if is_old(entry.noted_ns):
            entry.saved, entry.saved_due_ns = entry.noted, entry.due_ns
        entry.noted, entry.noted_ns, entry.due_ns = entry.attempts, now_ns, due_ns
        entry.was_due = False

    def time_out(self, entry: Entry, now_ns: int) -> None:
        """Requeue a message after its timeout; `apply_timeouts` has checked that it may."""
        if not entry.may_time_out(now_ns):
            raise ViolationError(f"{entry.message.body!r} is in two places, or timed out early")
        self.timeout_count += 1
        self.requeue_entry(entry, now_ns, lambda _: False)
        self._note("timed out")

    # Events of the channel.

    def close_all(self, now_ns: int, *, below: int | None = None) -> None:
        """Finish all messages, or all below a number, at once and durably."""
        for seq, entry in list(self.open.items()):
            if below is None or seq < below:
                self.remove_from_flight(entry)
                del self.open[seq]
                self.closed[seq] = entry, now_ns
                self.finished.pop(seq, None)

    def forget_in_flight(self) -> None:
        """Responses to messages in flight have no effect from now on."""
        for holder in self.holders:
            for entry in holder.in_flight.values():
                entry.holder = None
            holder.in_flight.clear()
        self.departed.clear()

    def move(self, seq: int, messages: Iterable[Stored], now_ns: int) -> None:
        """Only `messages` are open from now on, as if they were new."""
        self.forget_in_flight()
        self.close_all(now_ns)
        self.finished.clear()
        self.skipped.clear()
        self.noted.clear()
        self.floor = seq
        self.last_first_seq = -1
        self.take(messages, now_ns, since_ns=now_ns)


class ModelTopic:
    """Expected state of one topic."""

    def __init__(self, real: Topic, now_ns: int) -> None:
        self.real = real
        self.name = real.name
        self.ephemeral = real.ephemeral
        self.changed_ns = now_ns  # last pause, empty, or change of its channels
        self.paused = False
        self.is_unsure = False  # a request of an operator failed: its effect is unknown
        self.keeps_all = False
        self.messages: dict[int, Stored] = {}  # messages that the log must contain
        self.held: list[Stored] = []
        self.held_count = 0  # messages since the topic holds them, dropped ones included
        self.dropped: dict[int, Stored] = {}  # emptied, or of a deletion with unknown result
        self.storing: list[tuple[bytes, int]] = []  # may be stored after a crash
        self.channels: dict[str, ModelChannel] = {}
        self.message_count = 0
        self.log_seen = (0, 0)  # size and next sequence number at the last check

    @property
    def is_holding(self) -> bool:
        return self.paused or not self.channels

    def is_needed(self, message: Stored) -> bool:
        """Whether a channel still needs the message."""
        return message in self.held or any(
            message.seq in channel.open
            for channel in self.channels.values()
            if not channel.ephemeral  # ephemeral channels have their messages in memory
        )
