"""What the broker has to do next, and when: one list for all topics and channels.

Three things, each asked for as often as anybody likes and done once: channels to be pumped,
channels whose next deadline comes up, topics with progress to be journalled. And what was handed
out waits here to be sent, so that a client's commands are answered before it is sent messages. The
engine, which owns the event loop, is told when there is something to do; it is never told twice for
the same work.

A channel has at most one live deadline on the heap, its earliest: later ones are found when that
one fires. So a delivery costs a comparison, and ten thousand idle channels cost nothing.
"""

import heapq
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.broker.channel import Channel
    from penstock.broker.subscriber import SubscriberConnection
    from penstock.broker.topic import Topic

__all__ = ["NEVER_NS", "EngineCallbacks", "Scheduler"]

NEVER_NS = 1 << 63


class EngineCallbacks(Protocol):
    """Functions of the engine that topics, channels and the broker call."""

    def end_turn_soon(self) -> None:
        """Calls `Broker.pump` after the events at hand have been handled."""

    def advance_at(self, now_ns: int) -> None:
        """Calls `Broker.advance` at this steady time, and cancels an earlier request."""

    def save_soon(self) -> None:
        """Calls `Broker.save_progress` within the journalling interval."""

    def topology_changed(self, topic: "Topic", *, persistent: bool) -> None:
        """This topic, or one of its channels, was created or deleted. `persistent` is False if it
        is ephemeral."""

    def topic_created(self, topic: "Topic") -> None:
        """A topic was created; nothing has been published to it yet."""

    def report_bug(self, where: str, error: Exception) -> None:
        """Logs an unexpected exception that was caught, with its traceback."""


class Scheduler:
    """See the module's docstring."""

    __slots__ = (
        "_deadlines",
        "_engine",
        "_sequence",
        "_unsaved",
        "awake",
        "outgoing",
        "wall_offset_ns",
    )

    def __init__(self, engine: EngineCallbacks, wall_offset_ns: int) -> None:
        self._engine = engine
        self.awake: list[Channel] = []
        self.outgoing: list[tuple[SubscriberConnection, list[bytes]]] = []
        self._deadlines: list[tuple[int, int, Channel]] = []
        self._sequence = 0
        self._unsaved: dict[Topic, None] = {}
        self.wall_offset_ns = wall_offset_ns  # wall time minus steady time

    def wake(self, channel: "Channel") -> None:
        """The channel may have something to deliver."""
        if channel.awake:
            return
        channel.awake = True
        if not self.awake and not self.outgoing:
            self._engine.end_turn_soon()
        self.awake.append(channel)

    def take_awake(self) -> list["Channel"]:
        """The channels to pump, each once; from here on they may be woken again."""
        awake, self.awake = self.awake, []
        for channel in awake:
            channel.awake = False
        return awake

    def deliver(self, connection: "SubscriberConnection", frames: list[bytes]) -> None:
        """These frames are to be sent."""
        if not self.awake and not self.outgoing:
            self._engine.end_turn_soon()
        self.outgoing.append((connection, frames))

    def take_outgoing(self) -> list[tuple["SubscriberConnection", list[bytes]]]:
        """What is to be sent, in this order."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def arm(self, channel: "Channel", deadline_ns: int) -> None:
        """The channel has something to do at `deadline_ns` (steady time)."""
        if deadline_ns >= channel.armed_ns:
            return
        channel.armed_ns = deadline_ns
        self._sequence += 1
        heapq.heappush(self._deadlines, (deadline_ns, self._sequence, channel))
        if self._deadlines[0][2] is channel:
            self._engine.advance_at(deadline_ns)

    def arm_at_wall(self, channel: "Channel", due_ns: int) -> None:
        """The same for a wall time."""
        self.arm(channel, due_ns - self.wall_offset_ns)

    def take_due(self, now_ns: int) -> list["Channel"]:
        """The channels whose deadline has come; they arm themselves again."""
        due = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ns:
            deadline_ns, _, channel = heapq.heappop(deadlines)
            if channel.armed_ns == deadline_ns:
                channel.armed_ns = NEVER_NS
                due.append(channel)
        return due

    def next_deadline_ns(self) -> int | None:
        """When `take_due` will next have something to return."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].armed_ns != deadlines[0][0]:
            heapq.heappop(deadlines)  # superseded by an earlier one, or the channel is gone
        return deadlines[0][0] if deadlines else None

    def unsaved(self, topic: "Topic") -> None:
        """A channel of the topic has progress that is not yet journalled."""
        if not self._unsaved:
            self._engine.save_soon()
        self._unsaved[topic] = None

    def take_unsaved(self) -> list["Topic"]:
        """The topics with progress to journal."""
        unsaved, self._unsaved = self._unsaved, {}
        return list(unsaved)

    def topology_changed(self, topic: "Topic", *, persistent: bool) -> None:
        """A topic, or a channel of it, was made or deleted."""
        self._engine.topology_changed(topic, persistent=persistent)

    def topic_created(self, topic: "Topic") -> None:
        """A topic was made."""
        self._engine.topic_created(topic)

    def report_bug(self, where: str, error: Exception) -> None:
        """Reports an unexpected exception that was caught."""
        self._engine.report_bug(where, error)
