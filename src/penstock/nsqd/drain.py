"""Draining: nsqd takes no more messages, and ends when its consumers have taken those it has.

Publishes are refused, and every nsqlookupd is told, so that producers go elsewhere. Consumers come
and go as before. When every queue is empty, or time is up, nsqd stops as it always does: what is
left stays on disk.
"""

import asyncio
from collections.abc import Callable, Iterable

from penstock.broker.broker import Broker
from penstock.broker.topic import Topic
from penstock.logs import Logger

__all__ = ["Drain"]

LOOK_SECONDS = 0.1


class Drain:
    """See the module's docstring."""

    def __init__(
        self,
        broker: Broker,
        tell_others: Callable[[], None],
        stop: Callable[[], None],
        *,
        timeout_seconds: float,
        log: Logger,
    ) -> None:
        """`timeout_seconds` is 0 for as long as it takes."""
        self._broker = broker
        self._tell_others = tell_others
        self._stop = stop
        self._timeout_seconds = timeout_seconds
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._until = float("inf")

    def start(self) -> None:
        """Begins; to ask again changes nothing."""
        if self._broker.draining:
            return
        limit = f"for up to {self._timeout_seconds:g} s" if self._timeout_seconds else "until done"
        self._log.info("NSQ: draining %s", limit)
        self._broker.draining = True
        self._tell_others()
        if self._timeout_seconds:
            self._until = self._loop.time() + self._timeout_seconds
        self._look()

    def _look(self) -> None:
        left = unfinished(self._broker.topics.values())
        if not left:
            self._log.info("NSQ: drained")
            self._stop()
        elif self._loop.time() >= self._until:
            self._log.warning("NSQ: not drained in time, %d messages stay on disk", left)
            self._stop()
        else:
            self._loop.call_later(LOOK_SECONDS, self._look)


def unfinished(topics: Iterable[Topic]) -> int:
    """How many messages somebody still has to finish: queued, in flight or deferred."""
    return sum(
        topic.depth
        + sum(
            channel.depth + channel.in_flight_count + channel.deferred_count
            for channel in topic.channels.values()
        )
        for topic in topics
    )
