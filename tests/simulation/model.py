"""A plain model of what topics and channels ought to hold, with no thought of how it is done.

A message is known by its number. For each channel it is open or finished; an open one is queued,
waits for a time, or is in flight with one consumer. The model is told what clients and operators
do, and what was stored; it tells whether a delivery may be, and how the counts must stand.

Times tell how far a promise reaches: what was finished within the last moments may be open again
after a crash, and what was not synced may be gone after a power loss. `aftermath` uses them.
"""

from collections.abc import Callable, Iterable

from tests.simulation.connection import Connection
from tests.simulation.violation import ViolationError

from penstock.broker.in_flight import DEADLINE_GRAIN_NS
from penstock.broker.topic import Topic
from penstock.protocol.frames import MessageFrame

__all__ = ["LONG_AGO", "Consumer", "Entry", "ModelChannel", "ModelTopic", "Stored"]

LONG_AGO = -(1 << 62)

_SEQ_MASK = (1 << 54) - 1

Note = Callable[[str], object]
"""Is told of each change of a message's state, for the coverage."""


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
        """How often it was delivered; as of its last return; and so far as that is surely saved."""
        self.noted_ns = LONG_AGO
        self.since_ns = since_ns  # when a cursor was moved so that it is open
        self.delivered = False  # ever, since the channel's cursor was last moved
        self.was_due = False  # its time had come, before somebody set the clock back
        self.holder: Consumer | None = None
        self.deadline_ns = self.delivered_ns = 0

    def remember(self, attempts: int, due_ns: int) -> None:
        """What is known of it from before the process ended."""
        self.attempts = self.noted = self.saved = attempts
        self.due_ns = self.saved_due_ns = due_ns

    def may_time_out(self, now_ns: int) -> bool:
        """Whether whoever has it may have had it for too long."""
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
    """See the module's docstring."""

    def __init__(self, topic: "ModelTopic", name: str, now_ns: int, note: Note) -> None:
        self.topic = topic
        self.name = name
        self.goes_with_consumers = name.endswith("#ephemeral")
        self.ephemeral = topic.ephemeral or self.goes_with_consumers  # so in memory only
        self.placed_ns = now_ns  # when it was made, or moved
        self.deleted = False
        self.paused = False
        self.committing = False
        self.floor = 0  # what is below has been finished, even if the topic still holds it
        self.skipped: set[int] = set()  # finished in advance, though the topic still holds them
        self.noted: dict[int, tuple[int, int]] = {}
        """Of those that the topic holds again after a power loss: attempts, and when due."""
        self.open: dict[int, Entry] = {}
        self.finished: dict[int, tuple[Entry, int]] = {}
        """Those finished lately, and when."""
        self.closed: dict[int, tuple[Entry, int]] = {}
        """The same, for as long as a power loss might bring them back."""
        self.last_first_seq = -1
        self.consumers: list[Consumer] = []
        self.departed: list[Consumer] = []
        self.is_sampled = False  # has, or had, a consumer that does not want everything
        self.message_count = self.delivered_count = self.requeue_count = self.timeout_count = 0
        self._note = note

    @property
    def holders(self) -> list[Consumer]:
        """All that have messages in flight."""
        return self.consumers + self.departed

    @property
    def in_flight_count(self) -> int:
        return sum(len(each.in_flight) for each in self.holders)

    def queued(self) -> list[Entry]:
        """Those that are not in flight, whether or not they wait for a time."""
        return [entry for entry in self.open.values() if entry.holder is None]

    # What happens to a message.

    def take(self, messages: Iterable[Stored], now_ns: int, since_ns: int = LONG_AGO) -> None:
        """The topic gives the channel messages."""
        for message in messages:
            if message.seq >= self.floor and message.seq not in self.skipped:
                entry = self.open[message.seq] = Entry(message, since_ns)
                if message.seq in self.noted:
                    entry.remember(*self.noted.pop(message.seq))
                    entry.delivered = entry.attempts > 0
                self._note("deferred" if message.due_ns else "queued")

    def deliver(self, consumer: Consumer, message: MessageFrame, now_ns: int, wall_ns: int) -> None:
        """Makes sure that this delivery may be."""
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
        """Somebody is done with it."""
        seq = entry.message.seq
        self.let_go(entry)
        del self.open[seq]
        self.finished[seq] = self.closed[seq] = entry, now_ns

    def let_go(self, entry: Entry) -> None:
        """It is no longer in flight."""
        holder, entry.holder = entry.holder, None
        if holder is not None:
            in_flight = holder.in_flight
            for message_id in [each for each, its in in_flight.items() if its is entry]:
                del in_flight[message_id]

    def put_back(
        self, entry: Entry, now_ns: int, is_old: Callable[[int], bool], due_ns: int = 0
    ) -> None:
        """It is open again, and to be delivered once more."""
        self.let_go(entry)
        if is_old(entry.noted_ns):
            entry.saved, entry.saved_due_ns = entry.noted, entry.due_ns
        entry.noted, entry.noted_ns, entry.due_ns = entry.attempts, now_ns, due_ns
        entry.was_due = False

    def time_out(self, entry: Entry, now_ns: int) -> None:
        """It was not answered in time; `settle_timeouts` has seen to it that it may be so."""
        if not entry.may_time_out(now_ns):
            raise ViolationError(f"{entry.message.body!r} is in two places, or timed out early")
        self.timeout_count += 1
        self.put_back(entry, now_ns, lambda _: False)
        self._note("timed out")

    # What happens to the channel.

    def close_all(self, now_ns: int, *, below: int | None = None) -> None:
        """Finishes all, or all that is below a number, at once and on disk."""
        for seq, entry in list(self.open.items()):
            if below is None or seq < below:
                self.let_go(entry)
                del self.open[seq]
                self.closed[seq] = entry, now_ns
                self.finished.pop(seq, None)

    def forget_in_flight(self) -> None:
        """No answer to what is in flight counts any more."""
        for holder in self.holders:
            for entry in holder.in_flight.values():
                entry.holder = None
            holder.in_flight.clear()
        self.departed.clear()

    def move(self, seq: int, messages: Iterable[Stored], now_ns: int) -> None:
        """All of `messages` is as if it had just come, and nothing else is open."""
        self.forget_in_flight()
        self.close_all(now_ns)
        self.finished.clear()
        self.skipped.clear()
        self.noted.clear()
        self.floor = seq
        self.last_first_seq = -1
        self.take(messages, now_ns, since_ns=now_ns)


class ModelTopic:
    """See the module's docstring."""

    def __init__(self, real: Topic, now_ns: int) -> None:
        self.real = real
        self.name = real.name
        self.ephemeral = real.ephemeral
        self.changed_ns = now_ns  # when it was last paused, emptied, or a channel came or went
        self.paused = False
        self.is_unsure = False  # an operator was told that something failed: it may have happened
        self.keeps_all = False
        self.messages: dict[int, Stored] = {}  # what the log must have
        self.held: list[Stored] = []
        self.held_count = 0  # how many came since it holds, dropped ones of an ephemeral included
        self.dropped: dict[int, Stored] = {}  # held once, and emptied; or of an unsure deletion
        self.storing: list[tuple[bytes, int]] = []  # may be there after a crash
        self.channels: dict[str, ModelChannel] = {}
        self.message_count = 0
        self.log_seen = (0, 0)  # its size and next number when it was last looked at

    @property
    def is_holding(self) -> bool:
        return self.paused or not self.channels

    def is_needed(self, message: Stored) -> bool:
        """Whether somebody still has to be given the message."""
        return message in self.held or any(
            message.seq in channel.open
            for channel in self.channels.values()
            if not channel.ephemeral  # which has its messages in memory
        )
