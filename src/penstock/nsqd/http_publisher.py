"""Publishes that come by HTTP, put together into batches.

Most HTTP clients send one message with one request and wait for its answer, so that a read brings
one message only. But when there are many clients, one turn of the event loop brings many reads: all
that it brings for a topic is stored as one batch, with one write, and answered then.

Between `publish` and the end of the turn a message is not stored, and not acknowledged. Whoever
wants to see or to change a topic in the meantime calls `flush` first.
"""

import asyncio

from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import StorageError
from penstock.logs import Logger
from penstock.nsqd.durability import Durability
from penstock.webapi import OK, HttpError

__all__ = ["HttpPublisher"]

# A batch of this size is stored at once: waiting for more would save nothing.
BATCH_BYTES = 256 * 1024


class _Batch:
    __slots__ = ("answer", "bodies", "byte_size")

    def __init__(self, answer: "asyncio.Future[object]") -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.byte_size = 0


class HttpPublisher:
    """See the module's docstring."""

    def __init__(self, clock: Clock, durability: Durability, log: Logger) -> None:
        self._clock = clock
        self._durability = durability
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._batches: dict[Topic, _Batch] = {}

    def publish(self, topic: Topic, bodies: list[bytes]) -> "asyncio.Future[object]":
        """Takes messages; the future becomes OK when they are stored, or else an HttpError."""
        batch = self._batches.get(topic)
        if batch is None:
            batch = self._begin(topic)
        batch.bodies += bodies
        batch.byte_size += sum(map(len, bodies))
        if batch.byte_size >= BATCH_BYTES:
            self._store(topic, self._batches.pop(topic))
        return batch.answer

    def publish_deferred(
        self, topic: Topic, body: bytes, defer_ns: int
    ) -> "asyncio.Future[object]":
        """Takes one message that is not to be delivered before `defer_ns` have passed."""
        self.flush()
        batch = _Batch(self._loop.create_future())
        batch.bodies.append(body)
        self._store(topic, batch, defer_ns)
        return batch.answer

    def flush(self) -> None:
        """Stores what has been taken."""
        if self._batches:
            batches, self._batches = self._batches, {}
            for topic, batch in batches.items():
                self._store(topic, batch)

    def _begin(self, topic: Topic) -> _Batch:
        if not self._batches:
            self._loop.call_soon(self.flush)
        batch = self._batches[topic] = _Batch(self._loop.create_future())
        return batch

    def _store(self, topic: Topic, batch: _Batch, defer_ns: int = 0) -> None:
        answer, wall_ns = batch.answer, self._clock.wall_ns()

        def done(failure: StorageError | None) -> None:
            if failure is None:
                answer.set_result(OK)
            else:
                self._log.error("HTTP: failed to publish to %s - %s", topic.name, failure)
                # nsq compat: the same, whatever the reason.
                answer.set_exception(HttpError(503, "EXITING"))

        try:
            topic.publish(batch.bodies, wall_ns, wall_ns + defer_ns if defer_ns else 0)
        except StorageError as failure:
            done(failure)
        else:
            if self._durability.replies_wait:
                self._durability.when_safe(topic, done)
            else:
                done(None)
