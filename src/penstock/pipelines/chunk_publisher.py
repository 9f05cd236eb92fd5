"""Publishing chunks of messages to one nsqd, each once. Knows no Spark.

A chunk is one MPUB, which nsqd stores whole, one message after the other, or not at all. When there
is no answer, nobody knows which: then nsqd's log is looked at, from where it ended before.
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
from pyspark_nsq.nodes import Topics
from pyspark_nsq.offsets import TopicNode
from pyspark_nsq.reader import arrow_batches

__all__ = ["ChunkPublisher", "PendingChunk", "contains_run"]

TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 0.5

_SIZE = Struct(">i")

T = TypeVar("T")


class PendingChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that may have been published, or not."""

    node_id: int
    """Of the nsqd that they were sent to."""
    from_seq: int
    """If it has them, then from this number on."""
    count: int


class ChunkPublisher:
    """Publishes to a topic, at one node, so that the order is kept."""

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
        self._node_id = -1
        self._bases: dict[int, str] = {}

    def choose_node(self) -> None:
        """The first that answers; the topic is made there if need be. Raises NotConnectedError."""
        failures: list[str] = []
        for base in self._nodes.bases():
            try:
                self._ensure_topic(base)
                self._node_id = self._log_at(base).node_id
                self._bases[self._node_id] = base
                return
            except HttpRequestError as failure:
                failures.append(str(failure))
        raise NotConnectedError(
            f"no nsqd can be used: {'; '.join(failures) or 'no lookupd knows of one'}"
        )

    def prepare(self, count: int) -> PendingChunk:
        """What is to be known before so many messages are published. Raises Error when the node has
        been waited for."""
        log = self._retry(lambda: self._log_at(self._locate(self._node_id)))
        return PendingChunk(node_id=self._node_id, from_seq=log.next_seq, count=count)

    def publish(self, chunk: PendingChunk, bodies: Sequence[bytes]) -> None:
        """Once, whatever happens to nsqd meanwhile. Raises Error when it has been waited for, or if
        it does not take them: then too they are stored whole or not at all, see `is_stored`."""
        content = _multi_body(bodies)
        is_unclear = False

        def publish_or_find() -> None:
            nonlocal is_unclear
            if is_unclear and self.is_stored(chunk, bodies):
                return
            is_unclear = True
            base = self._locate(self._node_id)
            answer = self._calls.post(base, "/mpub", content, topic=self._topic, binary="true")
            if answer.status != 200:
                is_unclear = False
                raise answer.refusal()

        self._retry(publish_or_find)

    def is_stored(self, chunk: PendingChunk, bodies: Sequence[bytes]) -> bool:
        """Whether the node has them, one after the other. Raises Error when it has been waited
        for."""
        return self._retry(lambda: self._is_stored(chunk, list(bodies)))

    # Within.

    def _ensure_topic(self, base: str) -> None:
        """Asked for only where it is not there: it takes a token of another scope."""
        if self._nodes.history(base, self._topic).log() is None:
            answer = self._calls.post(base, "/topic/create", topic=self._topic)
            if answer.status != 200:
                raise answer.refusal()

    def _is_stored(self, chunk: PendingChunk, bodies: list[bytes]) -> bool:
        base = self._locate(chunk.node_id)
        end = self._log_at(base).next_seq
        if end - chunk.from_seq < len(bodies):
            return False
        history = self._nodes.history(base, self._topic)
        with history.frames(chunk.node_id, chunk.from_seq, end) as frames:
            stored = (
                body
                for batch in arrow_batches(frames, self._topic)
                for body in batch.column("body").to_pylist()
            )
            return contains_run(bodies, stored)

    def _retry(self, ask: Callable[[], T]) -> T:
        """Asks until there is an answer, or for so long."""
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                return ask()
            except (HttpRequestError, NotConnectedError) as failure:
                status = failure.status if isinstance(failure, HttpRequestError) else None
                is_final = status is not None and status < 500
                if is_final or time.monotonic() > deadline or self._stop.wait(RETRY_SECONDS):
                    raise
            self._bases.clear()  # it may come back elsewhere

    def _locate(self, node_id: int) -> str:
        """Where a node is now. Raises HttpRequestError or NotConnectedError."""
        if node_id not in self._bases:
            found = self._nodes.survey(Topics((self._topic,))).logs
            key = TopicNode(self._topic, node_id)
            if key not in found:
                raise NotConnectedError(f"node {node_id}, which has {self._topic}, is not found")
            self._bases[node_id] = found[key].base
        return self._bases[node_id]

    def _log_at(self, base: str) -> TopicLogResponse:
        log = self._nodes.history(base, self._topic).log()
        if log is None:
            raise HttpRequestError(base, f"topic {self._topic} is not there any more", status=404)
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
    """As MPUB has it: how many, and each after its size."""
    parts = [_SIZE.pack(len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    return b"".join(parts)
