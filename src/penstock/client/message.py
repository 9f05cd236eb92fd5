"""Messages as consumers get them, and delays as users give them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from penstock.common.errors import ClientError

__all__ = ["AckChannel", "Delay", "Message", "to_ms"]

Delay = float | timedelta


def to_ms(delay: Delay) -> int:
    """The delay in whole milliseconds. Raises ValueError if it is negative."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise ValueError(f"delay must not be negative: {seconds:g} s")
    return round(seconds * 1000)


class AckChannel(Protocol):
    """Sends FIN, REQ and TOUCH: the connection that delivered the message."""

    @property
    def address(self) -> str:
        """Address of the nsqd."""

    def finish(self, message_id: bytes) -> None: ...

    def requeue(self, message_id: bytes, delay_ms: int) -> None: ...

    def touch(self, message_id: bytes) -> None: ...


class Message:
    """One delivery of a message. Answer it once, with `finish` or `requeue`.

    Answers are queued and sent in one write, so they need no `await`. If the connection is lost
    before the write, nsqd delivers the message again. Answer in the thread of the event loop; only
    handlers that are plain functions may answer from their own thread (see `Consumer.run`).
    """

    __slots__ = ("_acks", "attempts", "body", "id", "is_answered", "timestamp_ns")

    def __init__(
        self, acks: AckChannel, timestamp_ns: int, attempts: int, id: bytes, body: bytes
    ) -> None:
        self._acks = acks
        self.timestamp_ns = timestamp_ns
        """Time of publication, in nanoseconds since 1970."""
        self.attempts = attempts
        """Number of deliveries, including this one."""
        self.id = id
        """16 bytes; the same in every delivery."""
        self.body = body
        self.is_answered = False

    def __repr__(self) -> str:
        body = repr(self.body if len(self.body) <= 40 else self.body[:40] + b"...")
        return f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts} {body}>"

    def finish(self) -> None:
        """Tell nsqd that the message is processed (FIN)."""
        if self.is_answered:
            raise self._already_answered()
        self.is_answered = True
        self._acks.finish(self.id)

    def requeue(self, delay: Delay = 0) -> None:
        """Ask nsqd to deliver the message again after `delay`, in seconds or a timedelta (REQ)."""
        delay_ms = to_ms(delay)
        if self.is_answered:
            raise self._already_answered()
        self.is_answered = True
        self._acks.requeue(self.id, delay_ms)

    def touch(self) -> None:
        """Restart nsqd's timeout for the message (TOUCH)."""
        if self.is_answered:
            raise self._already_answered()
        self._acks.touch(self.id)

    @property
    def published_at(self) -> datetime:
        """Time of publication in UTC, to the microsecond."""
        seconds, rest_ns = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1000)

    @property
    def address(self) -> str:
        """Address of the nsqd that delivered the message."""
        return self._acks.address

    def make_thread_safe(self, put: Callable[..., None]) -> None:
        """Allow any thread to answer this message. `put` schedules a call in the loop of the
        connection."""
        self._acks = _ThreadSafeAckChannel(self._acks, put)

    def is_from(self, connection: AckChannel) -> bool:
        """Whether this connection delivered the message."""
        return self._acks is connection

    def _already_answered(self) -> ClientError:
        return ClientError(f"message {self.id.decode('ascii', 'replace')} is already answered")


class _ThreadSafeAckChannel:
    """Schedules FIN, REQ and TOUCH in the loop of the connection."""

    __slots__ = ("_acks", "_put")

    def __init__(self, acks: AckChannel, put: Callable[..., None]) -> None:
        self._acks = acks
        self._put = put

    @property
    def address(self) -> str:
        return self._acks.address

    def finish(self, message_id: bytes) -> None:
        self._put(self._acks.finish, message_id)

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self._put(self._acks.requeue, message_id, delay_ms)

    def touch(self, message_id: bytes) -> None:
        self._put(self._acks.touch, message_id)
