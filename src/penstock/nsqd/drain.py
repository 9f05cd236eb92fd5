"""Draining: nsqd takes no more messages, and ends when its consumers have taken those it has.

Publishes are refused, and every nsqlookupd is told, so that producers go elsewhere. Consumers come
and go as before. When nothing is queued, in flight or deferred any more, or when time is up, nsqd
stops as it always does: what is left stays on disk.
"""

import asyncio
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.broker.topic import Topic
from penstock.common.logs import Logger

__all__ = ["Drain"]

# How often we look whether there is anything left.
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
        report_bug: Callable[[str, Exception], None],
    ) -> None:
        """`timeout_seconds` is 0 for as long as it takes."""
        self._report_bug = report_bug
        self._broker = broker
        self._tell_others = tell_others
        self._stop = stop
        self._timeout_seconds = timeout_seconds
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._until = float("inf")
        self._unfinished: list[str] = []  # topics, those that are looked at last first

    def start(self) -> None:
        """Begins; to ask again changes nothing."""
        if self._broker.draining:
            return
        limit = f"for up to {self._timeout_seconds:g} s" if self._timeout_seconds else "until done"
        self._log.info("NSQ: draining %s", limit)
        self._broker.drain()
        self._tell_others()
        if self._timeout_seconds:
            self._until = self._loop.time() + self._timeout_seconds
        self._loop.call_soon(self._look)  # when what this turn has brought is stored

    def _look(self) -> None:
        try:
            is_empty = self._is_empty()
        except Exception as bug:  # noqa: BLE001 (reported; the timeout still ends the drain)
            self._report_bug("draining", bug)
            is_empty = False
        if is_empty:
            self._log.info("NSQ: drained")
            self._stop()
        elif self._loop.time() >= self._until:
            self._stop()
            left = sum(map(unfinished, self._broker.topics.values()))
            self._log.warning("NSQ: not drained in time, %d messages are left", left)
        else:
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _is_empty(self) -> bool:
        """One topic after the other is looked at until it is empty, so that a look costs little
        however many there are; then all are once more, since a channel may have been rewound."""
        topics = self._broker.topics
        while self._unfinished:
            topic = topics.get(self._unfinished[-1])
            if topic is not None and unfinished(topic):
                return False
            self._unfinished.pop()
        self._unfinished = [name for name, topic in topics.items() if unfinished(topic)]
        return not self._unfinished


def unfinished(topic: Topic) -> int:
    """How many messages somebody still has to finish: queued, in flight or deferred."""
    return topic.depth + sum(
        channel.depth + channel.in_flight_count + channel.deferred_count
        for channel in topic.channels.values()
    )
