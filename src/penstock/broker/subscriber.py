"""A channel's view of a consumer: its RDY count, its location, and its messages in flight.

A message in flight is in exactly one of two places:

* `fresh`: first deliveries in sequence. They are sent in batches and usually finished in batches,
  so each costs one dict entry, and a batch shares one deadline. The dict's order is the order of
  sequence numbers: a batch is identified by its last number, and expired messages are a prefix of
  the dict.
* `timed`: redelivered, touched, or delivered out of sequence (a deferred message). Each has its own
  deadline, on a heap whose stale entries are skipped.

Deadlines are steady time.

A node may prefer consumers in its own zone or region, because messages that stay there are cheaper
and faster. A node without a location prefers no consumer.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import repeat, takewhile
from typing import NamedTuple, Protocol

from penstock.broker.message_id import seq_of
from penstock.common.clock import MILLISECOND_NS
from penstock.protocol import frames as wire

__all__ = [
    "DEADLINE_GRAIN_NS",
    "UNKNOWN_LOCATION",
    "InFlight",
    "Locality",
    "Location",
    "Subscriber",
    "SubscriberConnection",
    "TimedDelivery",
    "locality",
]

# Batches sent within this time share the latest of their deadlines. This bounds the list of
# deadlines while a subscriber keeps one message for a minute and thousands of batches pass.
DEADLINE_GRAIN_NS = 5 * MILLISECOND_NS

# Numbers of deadlines at which stale ones (of finished batches and messages) are dropped.
_BATCHES_BEFORE_PRUNING = 64
_STALE_DEADLINES_MAX = 64


class Location(NamedTuple):
    """Zone and region of a node or a consumer; empty if unknown."""

    zone: str = ""
    region: str = ""


UNKNOWN_LOCATION = Location()


class Locality(IntEnum):
    """Distance between a node and a consumer, nearest first."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


def locality(ours: Location | None, theirs: Location) -> Locality:
    """The locality of `theirs`; `ours` is None on a node that prefers no consumer."""
    if ours is None:
        return Locality.GLOBAL
    if ours.zone and ours.zone == theirs.zone:
        return Locality.ZONE
    if ours.region and ours.region == theirs.region:
        return Locality.REGION
    return Locality.GLOBAL


class TimedDelivery(NamedTuple):
    """A message with a deadline of its own."""

    frame: bytes
    delivered_ns: int
    deadline_ns: int


class InFlight:
    """Messages in flight, by id."""

    __slots__ = ("_batches", "_timed_deadlines", "fresh", "timed")

    def __init__(self) -> None:
        self.fresh: dict[bytes, bytes] = {}
        self.timed: dict[bytes, TimedDelivery] = {}
        self._batches: deque[tuple[int, int]] = deque()  # (last sequence number, deadline)
        self._timed_deadlines: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self.fresh) + len(self.timed)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self.fresh or message_id in self.timed

    def frames(self) -> Iterator[bytes]:
        """All frames in flight, first deliveries first."""
        yield from self.fresh.values()
        for delivery in self.timed.values():
            yield delivery.frame

    def frames_of(self, ids: Iterable[bytes]) -> list[bytes]:
        """The frames of the given ids that are in flight, each once."""
        wanted = dict.fromkeys(ids)
        frames = list(filter(None, map(self.fresh.get, wanted)))
        if len(frames) < len(wanted):
            deliveries = filter(None, map(self.timed.get, wanted))
            frames.extend(each.frame for each in deliveries)
        return frames

    def with_deadlines(self) -> Iterator[tuple[bytes, int]]:
        """All frames in flight with their deadlines."""
        for message_id, frame in self.fresh.items():
            yield frame, self._deadline_of(message_id)
        for delivery in self.timed.values():
            yield delivery.frame, delivery.deadline_ns

    def add_fresh(self, frames: list[bytes], last_seq: int, deadline_ns: int) -> None:
        """Adds a batch of first deliveries up to `last_seq`, all above earlier batches."""
        if len(frames) == 1:
            self.fresh[wire.message_id(frames[0])] = frames[0]
        else:
            self.fresh.update(zip(wire.message_ids(frames), frames, strict=True))
        batches = self._batches
        if batches and deadline_ns <= (shared_ns := batches[-1][1]):
            batches[-1] = (last_seq, shared_ns)
            return
        if len(batches) >= _BATCHES_BEFORE_PRUNING:
            self._drop_finished_batches()
        batches.append((last_seq, deadline_ns + DEADLINE_GRAIN_NS))

    def add_timed(self, message_id: bytes, frame: bytes, now_ns: int, deadline_ns: int) -> None:
        """Adds one message with its own deadline."""
        self._set_timed(message_id, TimedDelivery(frame, now_ns, deadline_ns))

    def finish_fresh(self, ids: list[bytes]) -> list[bytes]:
        """Removes the first deliveries among `ids`; returns the other ids."""
        fresh = self.fresh
        if len(ids) == 1:
            return ids if fresh.pop(ids[0], None) is None else []
        count_before = len(fresh)
        found = list(map(fresh.pop, ids, repeat(None)))
        if count_before - len(fresh) == len(ids):
            return []
        return [message_id for message_id, frame in zip(ids, found, strict=True) if frame is None]

    def pop(self, message_id: bytes) -> bytes | None:
        """Removes one message and returns its frame, or None if it is not in flight."""
        frame = self.fresh.pop(message_id, None)
        if frame is None and (delivery := self.timed.pop(message_id, None)) is not None:
            frame = delivery.frame
        return frame

    def touch(
        self, message_id: bytes, now_ns: int, timeout_ns: int, timeout_max_ns: int
    ) -> int | None:
        """Sets a message's deadline to `timeout_ns` from now, at most `timeout_max_ns` after its
        delivery. Returns the deadline, or None if the message is not in flight."""
        if (delivery := self.timed.get(message_id)) is not None:
            frame, delivered_ns = delivery.frame, delivery.delivered_ns
        elif message_id in self.fresh:
            delivered_ns = self._deadline_of(message_id) - DEADLINE_GRAIN_NS - timeout_ns
            frame = self.fresh.pop(message_id)
        else:
            return None
        deadline_ns = min(now_ns + timeout_ns, delivered_ns + timeout_max_ns)
        self._set_timed(message_id, TimedDelivery(frame, delivered_ns, deadline_ns))
        return deadline_ns

    def pop_expired(self, now_ns: int) -> list[bytes]:
        """Removes all messages whose deadline has passed; returns their frames."""
        expired = self._pop_expired_fresh(now_ns)
        deadlines = self._timed_deadlines
        while deadlines and deadlines[0][0] <= now_ns:
            deadline_ns, message_id = heapq.heappop(deadlines)
            delivery = self.timed.get(message_id)
            if delivery is not None and delivery.deadline_ns == deadline_ns:
                del self.timed[message_id]
                expired.append(delivery.frame)
        return expired

    def pop_all(self) -> list[bytes]:
        """Removes all messages; returns their frames."""
        frames = list(self.frames())
        self.fresh.clear()
        self.timed.clear()
        self._batches.clear()
        self._timed_deadlines.clear()
        return frames

    def next_deadline_ns(self) -> int | None:
        """The next deadline; None if there is none."""
        self._drop_finished_batches()
        self._drop_stale_deadlines()
        heads = []
        if self._batches:
            heads.append(self._batches[0][1])
        if self._timed_deadlines:
            heads.append(self._timed_deadlines[0][0])
        return min(heads, default=None)

    def _set_timed(self, message_id: bytes, delivery: TimedDelivery) -> None:
        self.timed[message_id] = delivery
        deadlines = self._timed_deadlines
        if len(deadlines) < 2 * len(self.timed) + _STALE_DEADLINES_MAX:
            heapq.heappush(deadlines, (delivery.deadline_ns, message_id))
        else:
            # Most entries are stale, after many touches or requeues.
            deadlines[:] = [(each.deadline_ns, name) for name, each in self.timed.items()]
            heapq.heapify(deadlines)

    def _pop_expired_fresh(self, now_ns: int) -> list[bytes]:
        batches, last_seq = self._batches, -1
        while batches and batches[0][1] <= now_ns:
            last_seq, _ = batches.popleft()
        if last_seq < 0:
            return []
        return [self.fresh.pop(message_id) for message_id in list(_up_to(last_seq, self.fresh))]

    def _deadline_of(self, message_id: bytes) -> int:
        _, deadline_ns = self._batches[bisect_left(self._batches, (seq_of(message_id),))]
        return deadline_ns

    def _drop_finished_batches(self) -> None:
        batches = self._batches
        oldest_id = next(iter(self.fresh), None)
        if oldest_id is None:
            batches.clear()
            return
        oldest_seq = seq_of(oldest_id)
        while batches and batches[0][0] < oldest_seq:
            batches.popleft()

    def _drop_stale_deadlines(self) -> None:
        deadlines = self._timed_deadlines
        while deadlines:
            deadline_ns, message_id = deadlines[0]
            delivery = self.timed.get(message_id)
            if delivery is not None and delivery.deadline_ns == deadline_ns:
                return
            heapq.heappop(deadlines)


def _up_to(last_seq: int, ids: Iterable[bytes]) -> Iterator[bytes]:
    return takewhile(lambda message_id: seq_of(message_id) <= last_seq, ids)


class SubscriberConnection(Protocol):
    """The connection of a subscriber, or a recorder in a test."""

    def deliver(self, frames: list[bytes]) -> None:
        """Sends message frames."""

    def channel_gone(self) -> None:
        """Closes the connection, because the channel or its topic was deleted."""


class Subscriber:
    """One subscriber. RDY limits its messages in flight; deliveries do not reduce it."""

    __slots__ = (
        "blocked",
        "connection",
        "finish_count",
        "in_flight",
        "is_ready",
        "locality",
        "location",
        "message_count",
        "msg_timeout_ns",
        "rdy",
        "requeue_count",
        "sample_rate",
    )

    def __init__(
        self,
        connection: SubscriberConnection,
        msg_timeout_ns: int,
        sample_rate: int = 0,
        location: Location = UNKNOWN_LOCATION,
    ) -> None:
        self.connection = connection
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        """Percentage of messages to deliver; 0 for all."""
        self.location = location
        self.locality = Locality.GLOBAL
        """Set by the channel."""
        self.rdy = 0
        self.blocked = False
        """Whether the transport's write buffer is full."""
        self.is_ready = False
        """Whether the subscriber is in its channel's queue of ready subscribers."""
        self.in_flight = InFlight()
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    def capacity(self) -> int:
        """Number of messages that may be sent now; 0 or less for none."""
        if self.blocked:
            return 0
        in_flight = self.in_flight  # Inlined len(in_flight): saves a call per delivery.
        return self.rdy - len(in_flight.fresh) - len(in_flight.timed)

    @property
    def delivered_counts(self) -> list[int]:
        """Number of messages sent, by locality: all have the subscriber's own."""
        return [self.message_count if each is self.locality else 0 for each in Locality]
