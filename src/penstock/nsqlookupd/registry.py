"""Registry of the producers (nsqds) of each topic and channel. Pure: no socket, HTTP or JSON.

A registration is a key (category `client`, `topic` or `channel`, and names) with its producers. A
producer is in `Registration.producers` if and only if that registration is in the producer's
`topics` or `channels`; only the registry changes either.

The rules are NSQ's:

- A key outlives its producers, unless its name is ephemeral and its last producer unregisters it.
- The keys of a producer that disconnects remain, ephemeral or not.
- Deleting an ephemeral topic's key keeps its channels.
- A tombstone is deleted only together with the producer's registration for that topic.

Every topic has an `index`, which changes whenever the result of `lookup` changes, by an action of a
producer or by the passing of time. An unknown topic has index 0. The listener is notified of each
change, and calls `advance` when a deadline has passed.

A lookup takes time proportional to the producers of its topic, the removal of a producer to its
registrations, `used_node_ids` to all producers. Everything else takes constant time.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.common.clock import Clock
from penstock.common.errors import LimitReachedError
from penstock.common.names import is_ephemeral
from penstock.protocol.lookup_v1 import NsqdInfo

__all__ = [
    "CHANNEL",
    "CLIENT",
    "TOPIC",
    "UNKNOWN_INDEX",
    "Lookup",
    "RegisteredProducer",
    "Registration",
    "Registry",
    "RegistryListener",
    "Tombstone",
]

# Categories of registrations.
CLIENT: Final = "client"
TOPIC: Final = "topic"
CHANNEL: Final = "channel"

UNKNOWN_INDEX: Final = 0
"""The index of a topic that does not exist."""


class Tombstone(NamedTuple):
    """Hides a producer from the lookups of a topic for --tombstone-lifetime."""

    at_ns: int
    at_wall_ns: int


class RegisteredProducer:
    """A connected nsqd."""

    __slots__ = (
        "channels",
        "info",
        "is_active",
        "is_draining",
        "remote_address",
        "rendered",
        "seen_ns",
        "seen_wall_ns",
        "topics",
    )

    def __init__(self, remote_address: str, info: NsqdInfo, clock: Clock) -> None:
        self.remote_address = remote_address
        self.info = info
        self.seen_ns = clock.now_ns()
        self.seen_wall_ns = clock.wall_ns()
        self.is_active = True
        self.is_draining = False
        self.topics: dict[Registration, None] = {}
        self.channels: dict[Registration, None] = {}
        self.rendered = b""  # cache of the HTTP API: its JSON, rendered once

    @property
    def node(self) -> str:
        """Its name in `/topic/tombstone`: `broadcast address:HTTP port`."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"

    def is_same_nsqd(self, other: "RegisteredProducer") -> bool:
        """Whether both are connections of the same nsqd, for example while it reconnects, or of
        members of the same replicated node, which have the same node id."""
        ours, theirs = self.info, other.info
        return ours.is_same_replicated_node(theirs) or (
            ours.broadcast_address,
            ours.tcp_port,
            ours.http_port,
        ) == (theirs.broadcast_address, theirs.tcp_port, theirs.http_port)


class Registration:
    """A key (category, topic, channel), and its producers with their tombstones."""

    __slots__ = ("category", "channel", "index", "producers", "topic")

    def __init__(self, category: str, topic: str = "", channel: str = "") -> None:
        self.category = category
        self.topic = topic
        self.channel = channel
        self.producers: dict[RegisteredProducer, Tombstone | None] = {}
        self.index = UNKNOWN_INDEX  # only of topics

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.topic} subkey:{self.channel}"


class RegistryListener(Protocol):
    """Callbacks of a registry."""

    def changed(self, topic: str) -> None:
        """The result of `lookup` for this topic may have changed."""

    def advance_at(self, now_ns: int) -> None:
        """The registry wants a call of `advance` at this time, in place of any earlier request."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Result of a lookup: the index of the topic, its channels and its active producers."""

    index: int
    channels: list[str]
    producers: list[RegisteredProducer]


class Registry:
    """All registrations."""

    def __init__(
        self,
        clock: Clock,
        listener: RegistryListener,
        *,
        inactive_producer_timeout_ns: int,
        tombstone_lifetime_ns: int,
        max_topics: int = 0,
        max_channels_per_topic: int = 0,
    ) -> None:
        """0 disables a limit."""
        self._clock = clock
        self._listener = listener
        self._inactive_ns = inactive_producer_timeout_ns
        self._tombstone_ns = tombstone_lifetime_ns
        self._max_topics = max_topics
        self._max_channels = max_channels_per_topic
        self._clients = Registration(CLIENT)
        self._topics: dict[str, Registration] = {}
        self._channels: dict[str, dict[str, Registration]] = {}
        # In the order of expiry, because all tombstones have the same lifetime.
        self._tombstones: deque[tuple[int, Registration]] = deque()
        self._due_ns: int | None = None
        # Starts at the wall time, so that a restarted process reuses no index.
        self._last_index = clock.wall_ns() // 1000

    # Actions of producers. They return the registrations that were added or removed.

    def add_producer(
        self, remote_address: str, info: NsqdInfo
    ) -> tuple[RegisteredProducer, Registration]:
        """Adds a producer."""
        producer = RegisteredProducer(remote_address, info, self._clock)
        self._clients.producers[producer] = None
        self._schedule_advance(self._inactive_from_ns(producer))
        return producer, self._clients

    def ping(self, producer: RegisteredProducer, *, is_draining: bool) -> int:
        """Records a PING. Returns the time since the last one, in ns."""
        silence_ns = self._clock.now_ns() - producer.seen_ns
        producer.seen_ns += silence_ns
        producer.seen_wall_ns = self._clock.wall_ns()
        if not producer.is_active or producer.is_draining != is_draining:
            producer.is_draining = is_draining
            self._set_active(producer, is_active=True)
        return silence_ns

    def register(
        self, producer: RegisteredProducer, topic: str, channel: str = ""
    ) -> list[Registration]:
        """Registers a producer for a topic, or for a channel and its topic.

        Raises LimitReachedError."""
        self._check_limits(topic, channel)
        added = []
        if channel:
            registration = self._channel(topic, channel)
            if producer not in registration.producers:
                registration.producers[producer] = None
                producer.channels[registration] = None
                added.append(registration)
        registration = self._topic(topic)
        if producer not in registration.producers:
            registration.producers[producer] = None
            producer.topics[registration] = None
            self._bump_index(registration)
            added.append(registration)
        return added

    def unregister(
        self, producer: RegisteredProducer, topic: str, channel: str = ""
    ) -> list[Registration]:
        """Unregisters a producer from a channel, or from a topic and all of its channels."""
        if channel:
            registration = self._channels.get(topic, {}).get(channel)
            return self._remove_from(producer, [registration] if registration else [])
        removed = self._remove_from(
            producer, list(self._channels.get(topic, {}).values()), keep_keys=True
        )
        if registration := self._topics.get(topic):
            removed += self._remove_from(producer, [registration])
        return removed

    def remove_producer(self, producer: RegisteredProducer) -> list[Registration]:
        """Removes a producer. All keys remain, also ephemeral ones."""
        self._clients.producers.pop(producer, None)
        registrations = [*producer.channels, *producer.topics]
        return [*self._remove_from(producer, registrations, keep_keys=True), self._clients]

    # Actions of an operator.

    def create(self, topic: str, channel: str = "") -> None:
        """Creates a topic, or a channel and its topic, without producers.

        Raises LimitReachedError."""
        self._check_limits(topic, channel)
        if channel:
            self._channel(topic, channel)
        self._topic(topic)

    def delete_topic(self, topic: str) -> list[Registration]:
        """Deletes a topic and its channels; returns the deleted registrations."""
        deleted = list(self._channels.pop(topic, {}).values())
        if registration := self._topics.pop(topic, None):
            deleted.append(registration)
            self._listener.changed(topic)
        for registration in deleted:
            self._clear(registration)
        return deleted

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Deletes a channel; returns whether it existed."""
        registration = self._channels.get(topic, {}).get(channel)
        if registration is not None:
            self._clear(registration)
            self._remove_key(registration)
        return registration is not None

    def tombstone(self, topic: str, node: str) -> None:
        """Hides a node, `broadcast address:HTTP port`, from the lookups of a topic."""
        registration = self._topics.get(topic)
        if registration is None:
            return
        stone = Tombstone(self._clock.now_ns(), self._clock.wall_ns())
        for producer in registration.producers:
            if producer.node == node:
                registration.producers[producer] = stone
                self._tombstones.append((stone.at_ns + self._tombstone_ns, registration))
                self._schedule_advance(stone.at_ns + self._tombstone_ns)
                self._bump_index(registration)

    # Queries.

    def lookup(self, topic: str) -> Lookup | None:
        """Channels of a topic, and its producers that are active and not tombstoned; None if the
        topic does not exist."""
        self.advance()
        registration = self._topics.get(topic)
        if registration is None:
            return None
        producers = [
            producer
            for producer, stone in registration.producers.items()
            if producer.is_active and (stone is None or not self._is_in_effect(stone))
        ]
        return Lookup(registration.index, self.channels(topic), producers)

    def index(self, topic: str) -> int:
        """A number that changes with the result of `lookup`."""
        self.advance()
        registration = self._topics.get(topic)
        return UNKNOWN_INDEX if registration is None else registration.index

    @property
    def producers(self) -> Collection[RegisteredProducer]:
        """All connected producers."""
        return self._clients.producers.keys()

    def used_node_ids(self, producer: RegisteredProducer) -> dict[int, RegisteredProducer]:
        """Node ids of the other producers, each with a producer that has it."""
        return {
            other.info.node_id: other
            for other in self._clients.producers
            if other.info.node_id is not None and not producer.is_same_nsqd(other)
        }

    def topics(self) -> list[str]:
        """Names of all topics, also of those without producers."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Names of a topic's channels, also of those without producers."""
        return list(self._channels.get(topic, ()))

    def count_channels(self) -> int:
        """Number of channels of all topics."""
        return sum(map(len, self._channels.values()))

    def active_producers(self) -> list[RegisteredProducer]:
        """Producers that have sent a PING within --inactive-producer-timeout."""
        self.advance()
        return [producer for producer in self._clients.producers if producer.is_active]

    def tombstones_of(self, producer: RegisteredProducer) -> list[bool]:
        """For each of a producer's topics, whether its lookups hide the producer."""
        self.advance()
        if not self._tombstones:
            return [False] * len(producer.topics)
        stones = (registration.producers[producer] for registration in producer.topics)
        return [stone is not None and self._is_in_effect(stone) for stone in stones]

    def registrations(self) -> Iterator[Registration]:
        """All registrations."""
        yield self._clients
        yield from self._topics.values()
        for channels in self._channels.values():
            yield from channels.values()

    # Time.

    @property
    def next_deadline_ns(self) -> int | None:
        """When `advance` has to be called next; None if it need not be called."""
        return self._due_ns

    def advance(self) -> None:
        """Applies the timeouts of producers and tombstones."""
        now_ns = self._clock.now_ns()
        if self._due_ns is None or now_ns < self._due_ns:
            return
        while self._tombstones and self._tombstones[0][0] <= now_ns:
            self._bump_index(self._tombstones.popleft()[1])
        for producer in self._clients.producers:
            if producer.is_active and self._inactive_from_ns(producer) <= now_ns:
                self._set_active(producer, is_active=False)
        self._due_ns = None
        self._schedule_advance(self._next_due_ns())

    def _next_due_ns(self) -> int | None:
        times_ns = [
            self._inactive_from_ns(producer)
            for producer in self._clients.producers
            if producer.is_active
        ]
        if self._tombstones:
            times_ns.append(self._tombstones[0][0])
        return min(times_ns, default=None)

    def _schedule_advance(self, due_ns: int | None) -> None:
        # A PING does not change the timer: `advance` finds out that the deadline has moved.
        if due_ns is not None and (self._due_ns is None or due_ns < self._due_ns):
            self._due_ns = due_ns
            self._listener.advance_at(due_ns)

    def _inactive_from_ns(self, producer: RegisteredProducer) -> int:
        return producer.seen_ns + self._inactive_ns + 1

    def _is_in_effect(self, stone: Tombstone) -> bool:
        return self._clock.now_ns() - stone.at_ns < self._tombstone_ns

    def _set_active(self, producer: RegisteredProducer, *, is_active: bool) -> None:
        producer.is_active = is_active
        for registration in producer.topics:
            self._bump_index(registration)
        if is_active:
            self._schedule_advance(self._inactive_from_ns(producer))

    # Keys.

    def _check_limits(self, topic: str, channel: str) -> None:
        """Raises LimitReachedError if a new topic or channel would exceed a limit. Topics and
        channels outlive their producers, so without limits a client could fill the memory."""
        if 0 < self._max_topics <= len(self._topics) and topic not in self._topics:
            raise LimitReachedError(f"too many topics, the limit is {self._max_topics}")
        channels = self._channels.get(topic, ())
        if channel and 0 < self._max_channels <= len(channels) and channel not in channels:
            raise LimitReachedError(
                f"too many channels of {topic}, the limit is {self._max_channels}"
            )

    def _topic(self, topic: str) -> Registration:
        registration = self._topics.get(topic)
        if registration is None:
            registration = self._topics[topic] = Registration(TOPIC, topic)
            self._bump_index(registration)
        return registration

    def _channel(self, topic: str, channel: str) -> Registration:
        channels = self._channels.setdefault(topic, {})
        registration = channels.get(channel)
        if registration is None:
            registration = channels[channel] = Registration(CHANNEL, topic, channel)
            self._channels_changed(topic)
        return registration

    def _remove_from(
        self,
        producer: RegisteredProducer,
        registrations: list[Registration],
        *,
        keep_keys: bool = False,
    ) -> list[Registration]:
        """Removes a producer from registrations; returns those that had it."""
        removed = []
        for registration in registrations:
            if producer in registration.producers:
                del registration.producers[producer]
                self._unlink(producer, registration)
                removed.append(registration)
                if registration.category == TOPIC:
                    self._bump_index(registration)
            name = registration.channel or registration.topic
            if not keep_keys and not registration.producers and is_ephemeral(name):
                self._remove_key(registration)
        return removed

    def _clear(self, registration: Registration) -> None:
        for producer in registration.producers:
            self._unlink(producer, registration)
        registration.producers.clear()

    def _unlink(self, producer: RegisteredProducer, registration: Registration) -> None:
        linked = producer.topics if registration.category == TOPIC else producer.channels
        del linked[registration]

    def _remove_key(self, registration: Registration) -> None:
        topic = registration.topic
        if registration.category == TOPIC:
            del self._topics[topic]
            self._listener.changed(topic)
            return
        channels = self._channels[topic]
        del channels[registration.channel]
        if not channels:
            del self._channels[topic]
        self._channels_changed(topic)

    # Changes.

    def _channels_changed(self, topic: str) -> None:
        if registration := self._topics.get(topic):
            self._bump_index(registration)

    def _bump_index(self, registration: Registration) -> None:
        self._last_index += 1
        registration.index = self._last_index
        self._listener.changed(registration.topic)
