"""Publishing chunks of messages to one nsqd, each exactly once. No Spark here.

A chunk is one MPUB, which nsqd stores completely and contiguously, or not at all. If the response
is lost, the publisher searches nsqd's log for the chunk, starting at its end before the request.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TypeVar

import msgspec

from penstock.admin_api.models import TopicLogResponse
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.running import Stop
from pyspark_nsq.offsets import LogKey, NodeIdOffsets
from pyspark_nsq.options import Topics
from pyspark_nsq.reader import arrow_batches

__all__ = ["ChunkPublisher", "PendingChunk", "contains_run"]

TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 0.5

_SIZE = Struct(">i")

T = TypeVar("T")


class PendingChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that may or may not have been stored."""

    log_id: str = ""
    """Log that the chunk was sent to; empty in states of earlier versions."""
    node_id: int = -1
    """In states of earlier versions, the node that the chunk was sent to."""
    from_seq: int
    """If the node stored the chunk, it is at or after this sequence number."""
    count: int


class ChunkPublisher:
    """Publishes to a topic at one node, which preserves the order."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        stop: Stop,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._calls = brokers.calls()
        self._nodes = brokers.nodes()
        self._topic = topic
        self._stop = stop
        self._patience_seconds = timeout_seconds
        self._log_id = ""
        self._base = ""

    def choose_node(self) -> None:
        """Choose the first node that answers; create the topic there. Raises NotConnectedError."""
        failures: list[str] = []
        for base in self._nodes.bases():
            try:
                self._ensure_topic(base)
                self._log_id = self._log_at(base).log_id
                self._base = base
                return
            except HttpRequestError as failure:
                failures.append(str(failure))
        raise NotConnectedError(
            f"no nsqd available: {'; '.join(failures) or 'nsqlookupd knows none'}"
        )

    def prepare(self, count: int) -> PendingChunk:
        """Describe a chunk of `count` messages before it is published. Raises Error if the node is
        unreachable for too long."""
        log = self._retry(lambda: self._log_at(self._locate()))
        return PendingChunk(log_id=self._log_id, from_seq=log.next_seq, count=count)

    def publish(self, chunk: PendingChunk, bodies: Sequence[bytes]) -> None:
        """Publish a chunk exactly once, also if nsqd restarts meanwhile.

        Raises Error if nsqd rejects it or is unreachable for too long. Even then the chunk is
        stored completely or not at all; `is_stored` tells which.
        """
        content = _multi_body(bodies)
        is_unclear = False

        def publish_or_find() -> None:
            nonlocal is_unclear
            if is_unclear and self.is_stored(chunk, bodies):
                return
            is_unclear = True
            base = self._locate()
            answer = self._calls.post(base, "/mpub", content, topic=self._topic, binary="true")
            if answer.status != 200:
                is_unclear = False
                raise answer.error()

        self._retry(publish_or_find)

    def is_stored(self, chunk: PendingChunk, bodies: Sequence[bytes]) -> bool:
        """Whether the node has stored the chunk. Raises Error if it is unreachable for too long."""
        return self._retry(lambda: self._is_stored(chunk, list(bodies)))

    # Internals.

    def _ensure_topic(self, base: str) -> None:
        """Create the topic if it is missing. Only then is /topic/create requested, because it
        requires a token with another scope than publishing."""
        if self._nodes.history(base, self._topic).log() is None:
            answer = self._calls.post(base, "/topic/create", topic=self._topic)
            if answer.status != 200:
                raise answer.error()

    def _is_stored(self, chunk: PendingChunk, bodies: list[bytes]) -> bool:
        key, base = self._find_log(chunk.log_id or str(chunk.node_id), chunk.from_seq)
        end = self._log_at(base).next_seq
        if end - chunk.from_seq < len(bodies):
            return False
        history = self._nodes.history(base, self._topic)
        with history.frames(key.log_id, chunk.from_seq, end) as frames:
            stored = (
                body
                for batch in arrow_batches(frames, self._topic, key.log_id)
                for body in batch.column("body").to_pylist()
            )
            return contains_run(bodies, stored)

    def _retry(self, request: Callable[[], T]) -> T:
        """Retry until the node answers, or until the timeout."""
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                return request()
            except (HttpRequestError, NotConnectedError) as failure:
                status = failure.status if isinstance(failure, HttpRequestError) else None
                is_final = status is not None and status < 500
                if is_final or time.monotonic() > deadline or self._stop.wait(RETRY_SECONDS):
                    raise
            self._base = ""  # the node may return at another address

    def _locate(self) -> str:
        """Find the base URL of the log. Raises HttpRequestError or NotConnectedError."""
        if not self._base:
            self._base = self._find_log(self._log_id, 0)[1]
        return self._base

    def _find_log(self, log_id: str, seq: int) -> tuple[LogKey, str]:
        """Find a log and its base URL by its id, or by a node id. Raises HttpRequestError or
        NotConnectedError."""
        snapshot = self._nodes.snapshot(Topics((self._topic,)))
        (key,) = NodeIdOffsets().convert(
            {LogKey(self._topic, log_id): seq},
            snapshot.extents(),
            is_complete=not snapshot.failures,
        )
        if key not in snapshot.logs:
            raise NotConnectedError(f"{key} not found")
        return key, snapshot.logs[key].base

    def _log_at(self, base: str) -> TopicLogResponse:
        log = self._nodes.history(base, self._topic).log()
        if log is None:
            raise HttpRequestError(base, f"topic {self._topic} was deleted", status=404)
        return log


def contains_run(wanted: Sequence[bytes], stored: Iterable[bytes]) -> bool:
    """Whether the stored bodies contain the wanted ones as a contiguous run.

    Knuth-Morris-Pratt search: it reads each stored body once, and keeps none.
    """
    overlaps = _overlaps(wanted)
    matched = 0
    for body in stored:
        while matched and body != wanted[matched]:
            matched = overlaps[matched - 1]
        matched += body == wanted[matched]
        if matched == len(wanted):
            return True
    return False


def _overlaps(wanted: Sequence[bytes]) -> list[int]:
    """The failure table of Knuth-Morris-Pratt: the longest border of each prefix."""
    overlaps, matched = [0] * len(wanted), 0
    for index in range(1, len(wanted)):
        while matched and wanted[index] != wanted[matched]:
            matched = overlaps[matched - 1]
        matched += wanted[index] == wanted[matched]
        overlaps[index] = matched
    return overlaps


def _multi_body(bodies: Sequence[bytes]) -> bytes:
    """Body of an MPUB: the number of messages, then each with its size."""
    parts = [_SIZE.pack(len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    return b"".join(parts)
