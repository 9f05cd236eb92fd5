"""Lookups that wait for their answer to change.

Each is a future, which comes true when the topic it is about has changed, when its time is up, or
when nsqlookupd stops; what the answer is by then is for the asker to find out. A topic that changes
many times in one turn of the loop wakes those who wait for it once.

A peer that goes away does not end its wait. That costs a future and a timer until its time is up,
so both the time and the number of those who wait are limited.
"""

import asyncio

__all__ = ["WaitingLookups"]


class WaitingLookups:
    """Who waits for which topic."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._by_topic: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether nobody else may wait."""
        return self._count >= self._limit

    def wait(self, topic: str, seconds: float) -> "asyncio.Future[None]":
        """Comes true when `topic` has changed, or after so many seconds."""
        change: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, change)
        self._by_topic.setdefault(topic, set()).add(change)
        self._count += 1

        def forget(_: "asyncio.Future[None]") -> None:
            timer.cancel()
            self._forget(topic, change)

        change.add_done_callback(forget)
        return change

    def changed(self, topic: str) -> None:
        """Wakes those who wait for `topic`."""
        for change in self._by_topic.get(topic, ()):
            _wake(change)

    def wake_all(self) -> None:
        """Nobody is to wait any longer."""
        for topic in tuple(self._by_topic):
            self.changed(topic)

    def _forget(self, topic: str, change: "asyncio.Future[None]") -> None:
        waiting = self._by_topic[topic]
        waiting.discard(change)
        self._count -= 1
        if not waiting:
            del self._by_topic[topic]


def _wake(change: "asyncio.Future[None]") -> None:
    if not change.done():
        change.set_result(None)
