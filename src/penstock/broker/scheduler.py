"""The scheduler: pending work of all topics and channels.

Four kinds of work: channels with messages to deliver, frames to be sent, channels whose next
deadline is near, and topics with progress to be journalled. Work may be requested repeatedly and is
done once; the engine is called only for the first request. Frames wait here so that a client's
commands are answered before messages are sent to it.

A channel has at most one valid deadline on the heap, its earliest. So a delivery costs one
comparison, and ten thousand idle channels cost nothing.
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
    """Collects work, and calls the engine when there is some."""

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
        """Schedules a channel that may have something to deliver."""
        if channel.awake:
            return
        channel.awake = True
        if not self.awake and not self.outgoing:
            self._engine.end_turn_soon()
        self.awake.append(channel)

    def take_awake(self) -> list["Channel"]:
        """Removes and returns the channels to pump. They may be woken again from now on."""
        awake, self.awake = self.awake, []
        for channel in awake:
            channel.awake = False
        return awake

    def deliver(self, connection: "SubscriberConnection", frames: list[bytes]) -> None:
        """Schedules frames to be sent."""
        if not self.awake and not self.outgoing:
            self._engine.end_turn_soon()
        self.outgoing.append((connection, frames))

    def take_outgoing(self) -> list[tuple["SubscriberConnection", list[bytes]]]:
        """Removes and returns the frames to be sent, in order."""
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def arm(self, channel: "Channel", deadline_ns: int) -> None:
        """Schedules a channel for a steady time, unless it has an earlier deadline."""
        if deadline_ns >= channel.armed_ns:
            return
        channel.armed_ns = deadline_ns
        self._sequence += 1
        heapq.heappush(self._deadlines, (deadline_ns, self._sequence, channel))
        if self._deadlines[0][2] is channel:
            self._engine.advance_at(deadline_ns)

    def arm_at_wall(self, channel: "Channel", due_ns: int) -> None:
        """Schedules a channel for a wall time."""
        self.arm(channel, due_ns - self.wall_offset_ns)

    def take_due(self, now_ns: int) -> list["Channel"]:
        """Removes and returns the channels whose deadline has passed. They call `arm` again."""
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
            heapq.heappop(deadlines)  # The channel has an earlier deadline, or was deleted.
        return deadlines[0][0] if deadlines else None

    def unsaved(self, topic: "Topic") -> None:
        """Schedules the journalling of a topic's progress."""
        if not self._unsaved:
            self._engine.save_soon()
        self._unsaved[topic] = None

    def take_unsaved(self) -> list["Topic"]:
        """Removes and returns the topics with progress to journal."""
        unsaved, self._unsaved = self._unsaved, {}
        return list(unsaved)

    def topology_changed(self, topic: "Topic", *, persistent: bool) -> None:
        """Tells the engine that a topic, or one of its channels, was created or deleted."""
        self._engine.topology_changed(topic, persistent=persistent)

    def topic_created(self, topic: "Topic") -> None:
        """Tells the engine that a topic was created."""
        self._engine.topic_created(topic)

    def report_bug(self, where: str, error: Exception) -> None:
        """Reports an unexpected exception that was caught."""
        self._engine.report_bug(where, error)
