"""Messages of one topic that are published by one command: PUB, MPUB or DPUB.

nsqd confirms or refuses a batch as a whole. If a connection is lost, its unconfirmed batches are
sent to another nsqd. This module does not use `waiters`; it only carries them for the caller.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from penstock.common import names
from penstock.protocol import commands

__all__ = ["PublishBatch", "checked_bodies", "checked_body", "checked_topic", "split_into_batches"]

_Waiter = TypeVar("_Waiter")

_SIZE_BYTES = 4


class PublishBatch(Generic[_Waiter]):
    """Bodies for one topic, and the waiters to notify when nsqd has stored them."""

    __slots__ = (
        "bodies",
        "deadline",
        "defer_ms",
        "refused_by",
        "sent_at",
        "size",
        "topic",
        "waiters",
    )

    def __init__(self, topic: str, *, defer_ms: int = 0, deadline: float = 0.0) -> None:
        """`deadline` is in the caller's clock."""
        self.topic = topic
        self.defer_ms = defer_ms
        self.deadline = deadline
        self.sent_at = 0.0
        self.refused_by: frozenset[str] = frozenset()  # nsqds that failed to store it
        self.size = _SIZE_BYTES  # of the body of an MPUB
        self.bodies: list[bytes] = []
        self.waiters: list[_Waiter] = []

    def add(self, body: bytes) -> None:
        self.bodies.append(body)
        self.size += _SIZE_BYTES + len(body)

    def extend(self, bodies: Sequence[bytes]) -> None:
        self.bodies.extend(bodies)
        self.size += _SIZE_BYTES * len(bodies) + sum(map(len, bodies))

    def render(self) -> bytes:
        """Encode the publish command."""
        if len(self.bodies) > 1:
            return commands.mpub(self.topic, self.bodies)
        if self.defer_ms:
            return commands.dpub(self.topic, self.defer_ms, self.bodies[0])
        return commands.pub(self.topic, self.bodies[0])

    def split(self) -> "list[PublishBatch[_Waiter]]":
        """One batch per message. If nsqd refuses a batch because of one message, the others can be
        published alone. Empty if the batch has one message, or one waiter for all messages."""
        if len(self.bodies) == 1 or len(self.waiters) != len(self.bodies):
            return []
        parts = []
        for body, waiter in zip(self.bodies, self.waiters, strict=True):
            part: PublishBatch[_Waiter] = PublishBatch(self.topic, deadline=self.deadline)
            part.add(body)
            part.waiters.append(waiter)
            parts.append(part)
        return parts


def split_into_batches(bodies: Sequence[bytes], size_max: int) -> Iterator[Sequence[bytes]]:
    """Split bodies into runs that fit into an MPUB of `size_max` bytes; a larger body is alone."""
    start, size = 0, _SIZE_BYTES
    for index, body in enumerate(bodies):
        entry_bytes = _SIZE_BYTES + len(body)
        if index > start and size + entry_bytes > size_max:
            yield bodies[start:index]
            start, size = index, _SIZE_BYTES
        size += entry_bytes
    if start < len(bodies):
        yield bodies[start:]


def checked_topic(topic: str) -> str:
    """The topic itself. Raises ValueError if the name is invalid."""
    if not names.is_valid(topic):
        raise ValueError(f"topic name {topic!r} is not valid")
    return topic


def checked_body(body: bytes | bytearray | memoryview) -> bytes:
    """The body as bytes. Raises TypeError if it is not bytes, ValueError if it is empty."""
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            raise TypeError(f"message body must be bytes, not {type(body).__name__}")
        body = bytes(body)
    if not body:
        raise ValueError("message body must not be empty")
    return body


def checked_bodies(bodies: Iterable[bytes]) -> list[bytes]:
    """Apply `checked_body` to each body."""
    return list(map(checked_body, bodies))
