"""Draining: nsqd accepts no messages, and stops when its consumers have finished all it has.

Publishes are refused, and every nsqlookupd is notified, so that producers use other nodes.
Consumers are served as before. When no message is queued, in flight or deferred, or after the
timeout, nsqd stops normally; remaining messages stay on disk.
"""

import asyncio
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.broker.topic import Topic
from penstock.common.logs import Logger

__all__ = ["Drain"]

# Interval of checks for remaining messages.
CHECK_SECONDS = 0.1


class Drain:
    """Starts draining, and stops nsqd when it is done."""

    def __init__(
        self,
        broker: Broker,
        on_start: Callable[[], None],
        stop: Callable[[], None],
        *,
        timeout_seconds: float,
        log: Logger,
        report_bug: Callable[[str, Exception], None],
    ) -> None:
        """`on_start` is called when draining starts: it notifies nsqlookupds and clients. A
        `timeout_seconds` of 0 means no timeout."""
        self._report_bug = report_bug
        self._broker = broker
        self._on_start = on_start
        self._stop = stop
        self._timeout_seconds = timeout_seconds
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._until = float("inf")
        self._unfinished: list[str] = []  # names of topics, a stack

    def start(self) -> None:
        """Starts draining; further calls have no effect."""
        if self._broker.draining:
            return
        limit = f"for up to {self._timeout_seconds:g} s" if self._timeout_seconds else "until done"
        self._log.info("NSQ: draining %s", limit)
        self._broker.drain()
        self._on_start()
        if self._timeout_seconds:
            self._until = self._loop.time() + self._timeout_seconds
        self._loop.call_soon(self._check)  # after the publishes of this turn are stored

    def _check(self) -> None:
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
            left = sum(map(unfinished_count, self._broker.topics.values()))
            self._log.warning("NSQ: not drained in time, %d messages are left", left)
        else:
            self._loop.call_later(CHECK_SECONDS, self._check)

    def _is_empty(self) -> bool:
        """Checks one topic until it is empty, then the next one, so that a check is cheap with any
        number of topics. At the end it checks all again: a channel may have been rewound."""
        topics = self._broker.topics
        while self._unfinished:
            topic = topics.get(self._unfinished[-1])
            if topic is not None and unfinished_count(topic):
                return False
            self._unfinished.pop()
        self._unfinished = [name for name, topic in topics.items() if unfinished_count(topic)]
        return not self._unfinished


def unfinished_count(topic: Topic) -> int:
    """Number of messages that are queued, in flight or deferred."""
    return topic.depth + sum(
        channel.depth + channel.in_flight_count + channel.deferred_count
        for channel in topic.channels.values()
    )
