"""Publishes that travel together: messages of one topic, sent by one command.

A batch is what nsqd confirms or refuses, and what is sent again elsewhere when a connection is
lost. What waits for it is the driver's business: `waiters` is carried along, and not looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from penstock.common import names
from penstock.protocol import commands

__all__ = ["PublishBatch", "checked_bodies", "checked_body", "checked_topic", "split_into_batches"]

_Waiter = TypeVar("_Waiter")

_SIZE_BYTES = 4


class PublishBatch(Generic[_Waiter]):
    """Bodies for one topic, and who waits for them to be stored."""

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
        """`deadline` is on the driver's clock."""
        self.topic = topic
        self.defer_ms = defer_ms
        self.deadline = deadline
        self.sent_at = 0.0
        self.refused_by: frozenset[str] = frozenset()  # nsqds that cannot store it
        self.size = _SIZE_BYTES  # as the body of a multi-publish
        self.bodies: list[bytes] = []
        self.waiters: list[_Waiter] = []

    def add(self, body: bytes) -> None:
        """One more message."""
        self.bodies.append(body)
        self.size += _SIZE_BYTES + len(body)

    def extend(self, bodies: Sequence[bytes]) -> None:
        """Several more."""
        self.bodies.extend(bodies)
        self.size += _SIZE_BYTES * len(bodies) + sum(map(len, bodies))

    def render(self) -> bytes:
        """The command that publishes it."""
        if len(self.bodies) > 1:
            return commands.mpub(self.topic, self.bodies)
        if self.defer_ms:
            return commands.dpub(self.topic, self.defer_ms, self.bodies[0])
        return commands.pub(self.topic, self.bodies[0])

    def split(self) -> "list[PublishBatch[_Waiter]]":
        """A batch for each message: when nsqd refuses the whole, only the one it means fails.

        There is nothing to split where one waiter waits for several messages.
        """
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
    """Runs of bodies that fit into a multi-publish of so many bytes; a larger body is alone."""
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
    """Raises ValueError if it cannot name a topic."""
    if not names.is_valid(topic):
        raise ValueError(f"topic name {topic!r} is not valid")
    return topic


def checked_body(body: bytes | bytearray | memoryview) -> bytes:
    """As bytes. Raises TypeError for text, ValueError for nothing: nsqd takes no empty message."""
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            raise TypeError(f"a message is bytes, not {type(body).__name__}")
        body = bytes(body)
    if not body:
        raise ValueError("a message cannot be empty")
    return body


def checked_bodies(bodies: Iterable[bytes]) -> list[bytes]:
    """Each as `checked_body` does it."""
    return list(map(checked_body, bodies))
