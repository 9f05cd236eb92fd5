"""Long polling of /lookup: requests that wait until the registry's result for a topic changes.

Each waiting request has a future, which is done when the topic has changed, when the timeout has
passed, or when nsqlookupd stops. The caller then makes the response. If a topic changes several
times in one turn of the loop, its waiting requests respond once.

A client that disconnects does not end its wait, which costs a future and a timer until the timeout.
The timeout and the number of waiting requests are therefore limited.
"""

import asyncio

__all__ = ["LongPolls"]


class LongPolls:
    """The waiting requests by topic."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._by_topic: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of requests wait."""
        return self._count >= self._limit

    def wait(self, topic: str, timeout_seconds: float) -> "asyncio.Future[None]":
        """A future that is done when `topic` has changed, or after the timeout."""
        change: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(timeout_seconds, _wake, change)
        self._by_topic.setdefault(topic, set()).add(change)
        self._count += 1

        def remove(_: "asyncio.Future[None]") -> None:
            timer.cancel()
            self._remove(topic, change)

        change.add_done_callback(remove)
        return change

    def notify(self, topic: str) -> None:
        """Ends the waits for `topic`."""
        for change in self._by_topic.get(topic, ()):
            _wake(change)

    def wake_all(self) -> None:
        """Ends all waits."""
        for topic in tuple(self._by_topic):
            self.notify(topic)

    def _remove(self, topic: str, change: "asyncio.Future[None]") -> None:
        waiting = self._by_topic[topic]
        waiting.discard(change)
        self._count -= 1
        if not waiting:
            del self._by_topic[topic]


def _wake(change: "asyncio.Future[None]") -> None:
    if not change.done():
        change.set_result(None)
