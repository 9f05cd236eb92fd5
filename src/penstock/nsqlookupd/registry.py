"""Who has what: the producers (nsqds) registered for each topic and each channel.

A registration is a key, its category `client`, `topic` or `channel`, and the producers under it.
The rules are the reference's, also the odd ones: a key outlives its producers, unless its name is
ephemeral and its last producer has taken it back; what a lost connection leaves behind stays,
ephemeral or not; channels do not go with an ephemeral topic; a tombstone is forgotten only with the
producer's registration for that topic.

Every topic has an `index`, which is another number whenever what `lookup` answers for it is
different, be it by what a producer does or by the passing of time; a topic that is not known has
index 0. The driver is told of each change, and tells the registry when time has passed.

Costs: a lookup grows with the producers of its topic, the end of a producer with its registrations;
everything else is constant. It knows no socket, no HTTP and no JSON.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.errors import LimitReachedError
from penstock.common.names import is_ephemeral
from penstock.nsqlookupd.registration import (
    CHANNEL,
    CLIENT,
    TOPIC,
    UNKNOWN_INDEX,
    Producer,
    Registration,
    Tombstone,
)
from penstock.protocol.lookup_v1 import NsqdInfo

__all__ = ["Driver", "Lookup", "Registry"]


class Driver(Protocol):
    """What the registry needs from those around it."""

    def changed(self, topic: str) -> None:
        """The answer for this topic may be another one now."""

    def advance_at(self, now_ns: int) -> None:
        """Calls `advance` at this time; only the latest such wish counts."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of a topic."""

    index: int
    channels: list[str]
    producers: list[Producer]


class Registry:
    """All registrations there are."""

    def __init__(
        self,
        clock: Clock,
        driver: Driver,
        *,
        inactive_producer_timeout_ns: int,
        tombstone_lifetime_ns: int,
        max_topics: int = 0,
        max_channels_per_topic: int = 0,
    ) -> None:
        """A limit of 0 is none."""
        self._clock = clock
        self._driver = driver
        self._inactive_ns = inactive_producer_timeout_ns
        self._tombstone_ns = tombstone_lifetime_ns
        self._max_topics = max_topics
        self._max_channels = max_channels_per_topic
        self._clients = Registration(CLIENT)
        self._topics: dict[str, Registration] = {}
        self._channels: dict[str, dict[str, Registration]] = {}
        # All tombstones last equally long, so that those set first go first.
        self._tombstones: deque[tuple[int, Registration]] = deque()
        self._due_ns: int | None = None
        # From the time of day, so that no index is given twice, by this process or the next.
        self._last_index = clock.wall_ns() // 1000

    # What producers do. Registrations that were made or taken back are returned.

    def identify(self, remote_address: str, info: NsqdInfo) -> tuple[Producer, Registration]:
        """A producer has come."""
        producer = Producer(remote_address, info, self._clock)
        self._clients.producers[producer] = None
        self._advance_by(self._inactive_from_ns(producer))
        return producer, self._clients

    def ping(self, producer: Producer, *, draining: bool) -> int:
        """A producer is still there. Returns for how many ns it was not heard of."""
        silence_ns = self._clock.now_ns() - producer.seen_ns
        producer.seen_ns += silence_ns
        producer.seen_wall_ns = self._clock.wall_ns()
        if not producer.is_active or producer.draining != draining:
            producer.draining = draining
            self._set_active(producer, is_active=True)
        return silence_ns

    def register(self, producer: Producer, topic: str, channel: str = "") -> list[Registration]:
        """A producer has this topic, and this channel of it. Raises LimitReachedError."""
        self._check_room(topic, channel)
        made = []
        if channel:
            registration = self._channel(topic, channel)
            if producer not in registration.producers:
                registration.producers[producer] = None
                producer.channels[registration] = None
                made.append(registration)
        registration = self._topic(topic)
        if producer not in registration.producers:
            registration.producers[producer] = None
            producer.topics[registration] = None
            self._bump(registration)
            made.append(registration)
        return made

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> list[Registration]:
        """A producer has this channel no more, or this topic and all of its channels."""
        if channel:
            registration = self._channels.get(topic, {}).get(channel)
            return self._take_back(producer, [registration] if registration else [])
        taken_back = self._take_back(
            producer, list(self._channels.get(topic, {}).values()), keys_stay=True
        )
        if registration := self._topics.get(topic):
            taken_back += self._take_back(producer, [registration])
        return taken_back

    def leave(self, producer: Producer) -> list[Registration]:
        """A producer has gone. All keys stay, whatever their names."""
        self._clients.producers.pop(producer, None)
        registrations = [*producer.channels, *producer.topics]
        return [*self._take_back(producer, registrations, keys_stay=True), self._clients]

    # What an operator does.

    def create(self, topic: str, channel: str = "") -> None:
        """Makes the key of a topic, and of a channel, with no producer yet.
        Raises LimitReachedError."""
        self._check_room(topic, channel)
        if channel:
            self._channel(topic, channel)
        self._topic(topic)

    def delete_topic(self, topic: str) -> list[Registration]:
        """Forgets a topic and its channels, and returns what there was of them."""
        deleted = list(self._channels.pop(topic, {}).values())
        if registration := self._topics.pop(topic, None):
            deleted.append(registration)
            self._driver.changed(topic)
        for registration in deleted:
            self._forget(registration)
        return deleted

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forgets a channel, if there is one of that name."""
        registration = self._channels.get(topic, {}).get(channel)
        if registration is not None:
            self._forget(registration)
            self._remove_key(registration)
        return registration is not None

    def tombstone(self, topic: str, node: str) -> None:
        """Hides this node, `broadcast address:HTTP port`, from lookups of a topic for a while."""
        registration = self._topics.get(topic)
        if registration is None:
            return
        stone = Tombstone(self._clock.now_ns(), self._clock.wall_ns())
        for producer in registration.producers:
            if producer.node == node:
                registration.producers[producer] = stone
                self._tombstones.append((stone.at_ns + self._tombstone_ns, registration))
                self._advance_by(stone.at_ns + self._tombstone_ns)
                self._bump(registration)

    # What anybody may ask.

    def lookup(self, topic: str) -> Lookup | None:
        """The channels of a topic, and its producers that are active and not tombstoned."""
        self.advance()
        registration = self._topics.get(topic)
        if registration is None:
            return None
        producers = [
            producer
            for producer, stone in registration.producers.items()
            if producer.is_active and (stone is None or not self._hides(stone))
        ]
        return Lookup(registration.index, self.channels(topic), producers)

    def index(self, topic: str) -> int:
        """The number that changes with the answer of `lookup`."""
        self.advance()
        registration = self._topics.get(topic)
        return UNKNOWN_INDEX if registration is None else registration.index

    @property
    def producers(self) -> Collection[Producer]:
        """All that are connected."""
        return self._clients.producers.keys()

    def topics(self) -> list[str]:
        """All names, also of topics that no producer has."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """The names of a topic's channels, also of those that no producer has."""
        return list(self._channels.get(topic, ()))

    def count_channels(self) -> int:
        """How many there are, of all topics together."""
        return sum(map(len, self._channels.values()))

    def active_producers(self) -> list[Producer]:
        """All that were heard of lately."""
        self.advance()
        return [producer for producer in self._clients.producers if producer.is_active]

    def tombstones_of(self, producer: Producer) -> list[bool]:
        """For each of a producer's topics, whether it is hidden from the lookups of that one."""
        self.advance()
        if not self._tombstones:
            return [False] * len(producer.topics)
        stones = (registration.producers[producer] for registration in producer.topics)
        return [stone is not None and self._hides(stone) for stone in stones]

    def registrations(self) -> Iterator[Registration]:
        """Everything."""
        yield self._clients
        yield from self._topics.values()
        for channels in self._channels.values():
            yield from channels.values()

    # The passing of time.

    @property
    def next_deadline_ns(self) -> int | None:
        """When there will be something to notice, at the earliest."""
        return self._due_ns

    def advance(self) -> None:
        """Notices producers that were not heard of for long, and tombstones that have expired."""
        now_ns = self._clock.now_ns()
        if self._due_ns is None or now_ns < self._due_ns:
            return
        while self._tombstones and self._tombstones[0][0] <= now_ns:
            self._bump(self._tombstones.popleft()[1])
        for producer in self._clients.producers:
            if producer.is_active and self._inactive_from_ns(producer) <= now_ns:
                self._set_active(producer, is_active=False)
        self._due_ns = None
        self._advance_by(self._next_due_ns())

    def _next_due_ns(self) -> int | None:
        times_ns = [
            self._inactive_from_ns(producer)
            for producer in self._clients.producers
            if producer.is_active
        ]
        if self._tombstones:
            times_ns.append(self._tombstones[0][0])
        return min(times_ns, default=None)

    def _advance_by(self, due_ns: int | None) -> None:
        # What a producer's PING puts off is found out when the time comes, not at every PING.
        if due_ns is not None and (self._due_ns is None or due_ns < self._due_ns):
            self._due_ns = due_ns
            self._driver.advance_at(due_ns)

    def _inactive_from_ns(self, producer: Producer) -> int:
        return producer.seen_ns + self._inactive_ns + 1

    def _hides(self, stone: Tombstone) -> bool:
        return self._clock.now_ns() - stone.at_ns < self._tombstone_ns

    def _set_active(self, producer: Producer, *, is_active: bool) -> None:
        producer.is_active = is_active
        for registration in producer.topics:
            self._bump(registration)
        if is_active:
            self._advance_by(self._inactive_from_ns(producer))

    # Keys.

    def _check_room(self, topic: str, channel: str) -> None:
        """Whether keys can be made, before any is: since they stay, a peer could go on forever."""
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
            self._bump(registration)
        return registration

    def _channel(self, topic: str, channel: str) -> Registration:
        channels = self._channels.setdefault(topic, {})
        registration = channels.get(channel)
        if registration is None:
            registration = channels[channel] = Registration(CHANNEL, topic, channel)
            self._channels_changed(topic)
        return registration

    def _take_back(
        self, producer: Producer, registrations: list[Registration], *, keys_stay: bool = False
    ) -> list[Registration]:
        """Removes a producer from these, and says from which it did."""
        taken_back = []
        for registration in registrations:
            if producer in registration.producers:
                del registration.producers[producer]
                self._no_longer_of(producer, registration)
                taken_back.append(registration)
                if registration.category == TOPIC:
                    self._bump(registration)
            name = registration.channel or registration.topic
            if not keys_stay and not registration.producers and is_ephemeral(name):
                self._remove_key(registration)
        return taken_back

    def _forget(self, registration: Registration) -> None:
        for producer in registration.producers:
            self._no_longer_of(producer, registration)
        registration.producers.clear()

    def _no_longer_of(self, producer: Producer, registration: Registration) -> None:
        held = producer.topics if registration.category == TOPIC else producer.channels
        del held[registration]

    def _remove_key(self, registration: Registration) -> None:
        topic = registration.topic
        if registration.category == TOPIC:
            del self._topics[topic]
            self._driver.changed(topic)
            return
        channels = self._channels[topic]
        del channels[registration.channel]
        if not channels:
            del self._channels[topic]
        self._channels_changed(topic)

    # Changes.

    def _channels_changed(self, topic: str) -> None:
        if registration := self._topics.get(topic):
            self._bump(registration)

    def _bump(self, registration: Registration) -> None:
        self._last_index += 1
        registration.index = self._last_index
        self._driver.changed(registration.topic)
