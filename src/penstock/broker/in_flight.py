"""The messages handed to one subscriber and not yet answered.

A message is in exactly one of two places:

* `fresh`: first deliveries that came in sequence. Sent in batches and nearly always finished in
  batches, so they cost one dict entry each and share one deadline per batch. Because they are sent
  in sequence, the dict's order is also the order of sequence numbers: a batch is known by its last
  number, and what has expired is a prefix of the dict.
* `late`: redelivered, touched, or delivered out of sequence (a deferral that came due). Each has a
  deadline of its own, on a heap whose stale entries are skipped when they surface.

Deadlines are steady time. Nothing here knows a channel, a connection or a clock.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat, takewhile
from typing import NamedTuple

from penstock.broker.message_id import seq_of
from penstock.common.clock import MILLISECOND_NS
from penstock.protocol import frames as wire

__all__ = ["DEADLINE_GRAIN_NS", "InFlight", "TimedDelivery"]

# Batches sent within this time share a deadline, the latest of theirs: a subscriber that keeps one
# message for a minute while thousands of batches pass then holds a bounded list of deadlines.
DEADLINE_GRAIN_NS = 5 * MILLISECOND_NS

# How many deadlines may pile up before those of finished batches, or of messages that have another
# deadline by now, are dropped.
_BATCHES_BEFORE_PRUNING = 64
_STALE_DEADLINES_MAX = 64


class TimedDelivery(NamedTuple):
    """A message with a deadline of its own."""

    frame: bytes
    delivered_ns: int
    deadline_ns: int


class InFlight:
    """See the module's docstring."""

    __slots__ = ("_batches", "_timed_deadlines", "fresh", "timed")

    def __init__(self) -> None:
        self.fresh: dict[bytes, bytes] = {}
        self.timed: dict[bytes, TimedDelivery] = {}
        self._batches: deque[tuple[int, int]] = deque()  # last number, deadline of its messages
        self._timed_deadlines: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self.fresh) + len(self.timed)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self.fresh or message_id in self.timed

    def frames(self) -> Iterator[bytes]:
        """Every frame in flight, first deliveries first."""
        yield from self.fresh.values()
        for late in self.timed.values():
            yield late.frame

    def frames_of(self, ids: Iterable[bytes]) -> list[bytes]:
        """The frames of those of `ids` that are in flight here, each once."""
        wanted = dict.fromkeys(ids)
        frames = list(filter(None, map(self.fresh.get, wanted)))
        if len(frames) < len(wanted):
            late = filter(None, map(self.timed.get, wanted))
            frames.extend(each.frame for each in late)
        return frames

    def with_deadlines(self) -> Iterator[tuple[bytes, int]]:
        """Every frame in flight with the steady time until which it may be answered."""
        for message_id, frame in self.fresh.items():
            yield frame, self._deadline_of(message_id)
        for late in self.timed.values():
            yield late.frame, late.deadline_ns

    def add_fresh(self, frames: list[bytes], last_seq: int, deadline_ns: int) -> None:
        """Takes a batch in sequence, up to `last_seq`, all of it above every batch before."""
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
        """Takes one message with its own deadline."""
        self._set_timed(message_id, TimedDelivery(frame, now_ns, deadline_ns))

    def finish_fresh(self, ids: list[bytes]) -> list[bytes]:
        """Takes out those of `ids` that are first deliveries; returns the others."""
        fresh = self.fresh
        if len(ids) == 1:
            return ids if fresh.pop(ids[0], None) is None else []
        count_before = len(fresh)
        found = list(map(fresh.pop, ids, repeat(None)))
        if count_before - len(fresh) == len(ids):
            return []
        return [message_id for message_id, frame in zip(ids, found, strict=True) if frame is None]

    def pop(self, message_id: bytes) -> bytes | None:
        """Takes one message out and returns its frame, or None if it is not in flight here."""
        frame = self.fresh.pop(message_id, None)
        if frame is None and (late := self.timed.pop(message_id, None)) is not None:
            frame = late.frame
        return frame

    def touch(
        self, message_id: bytes, now_ns: int, timeout_ns: int, timeout_max_ns: int
    ) -> int | None:
        """Gives a message a new deadline, `timeout_ns` from now but never later than
        `timeout_max_ns` after it was delivered. Returns the deadline, None if not in flight."""
        if (late := self.timed.get(message_id)) is not None:
            frame, delivered_ns = late.frame, late.delivered_ns
        elif message_id in self.fresh:
            delivered_ns = self._deadline_of(message_id) - DEADLINE_GRAIN_NS - timeout_ns
            frame = self.fresh.pop(message_id)
        else:
            return None
        deadline_ns = min(now_ns + timeout_ns, delivered_ns + timeout_max_ns)
        self._set_timed(message_id, TimedDelivery(frame, delivered_ns, deadline_ns))
        return deadline_ns

    def pop_expired(self, now_ns: int) -> list[bytes]:
        """Takes out every message whose deadline has come; returns the frames."""
        expired = self._pop_expired_fresh(now_ns)
        deadlines = self._timed_deadlines
        while deadlines and deadlines[0][0] <= now_ns:
            deadline_ns, message_id = heapq.heappop(deadlines)
            late = self.timed.get(message_id)
            if late is not None and late.deadline_ns == deadline_ns:
                del self.timed[message_id]
                expired.append(late.frame)
        return expired

    def pop_all(self) -> list[bytes]:
        """Takes everything out; returns the frames."""
        frames = list(self.frames())
        self.fresh.clear()
        self.timed.clear()
        self._batches.clear()
        self._timed_deadlines.clear()
        return frames

    def next_deadline_ns(self) -> int | None:
        """When `pop_expired` will next have something to return."""
        self._drop_finished_batches()
        self._drop_stale_deadlines()
        heads = []
        if self._batches:
            heads.append(self._batches[0][1])
        if self._timed_deadlines:
            heads.append(self._timed_deadlines[0][0])
        return min(heads, default=None)

    def _set_timed(self, message_id: bytes, late: TimedDelivery) -> None:
        self.timed[message_id] = late
        deadlines = self._timed_deadlines
        if len(deadlines) < 2 * len(self.timed) + _STALE_DEADLINES_MAX:
            heapq.heappush(deadlines, (late.deadline_ns, message_id))
        else:
            # Touched or requeued over and over: most of what is here has been superseded.
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
            late = self.timed.get(message_id)
            if late is not None and late.deadline_ns == deadline_ns:
                return
            heapq.heappop(deadlines)


def _up_to(last_seq: int, ids: Iterable[bytes]) -> Iterator[bytes]:
    return takewhile(lambda message_id: seq_of(message_id) <= last_seq, ids)
