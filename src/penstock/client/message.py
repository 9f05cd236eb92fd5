"""Messages as consumers get them, and delays as users give them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from penstock.common.errors import ClientError

__all__ = ["AckChannel", "Delay", "Message", "to_ms"]

Delay = float | timedelta


def to_ms(delay: Delay) -> int:
    """Whole milliseconds, which is what the wire has. Raises ValueError if it is negative."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise ValueError(f"a delay cannot be negative: {seconds:g} s")
    return round(seconds * 1000)


class AckChannel(Protocol):
    """The connection that a message came on, which is where its answer goes."""

    @property
    def address(self) -> str:
        """Of the nsqd."""

    def finish(self, message_id: bytes) -> None: ...

    def requeue(self, message_id: bytes, delay_ms: int) -> None: ...

    def touch(self, message_id: bytes) -> None: ...


class Message:
    """One delivery. It is answered once, by `finish` or by `requeue`.

    Answers need no `await`: they are collected, and leave in one write. If the connection is lost
    first, nsqd delivers the message again, whatever the answer was. Only a handler that is a plain
    function may answer from a thread other than the loop's: see `Consumer.run`.
    """

    __slots__ = ("_answers", "attempts", "body", "id", "is_answered", "timestamp_ns")

    def __init__(
        self, answers: AckChannel, timestamp_ns: int, attempts: int, id: bytes, body: bytes
    ) -> None:
        self._answers = answers
        self.timestamp_ns = timestamp_ns
        """When it was published."""
        self.attempts = attempts
        """How many times it has been delivered, this one included."""
        self.id = id
        """16 bytes, the same at every delivery."""
        self.body = body
        self.is_answered = False

    def __repr__(self) -> str:
        body = repr(self.body if len(self.body) <= 40 else self.body[:40] + b"...")
        return f"<Message {self.id.decode('ascii', 'replace')} attempts={self.attempts} {body}>"

    def finish(self) -> None:
        """It is done with: nsqd forgets it."""
        if self.is_answered:
            raise self._answered_before()
        self.is_answered = True
        self._answers.finish(self.id)

    def requeue(self, delay: Delay = 0) -> None:
        """It is to be delivered again, to any consumer, after `delay` (seconds or timedelta)."""
        delay_ms = to_ms(delay)
        if self.is_answered:
            raise self._answered_before()
        self.is_answered = True
        self._answers.requeue(self.id, delay_ms)

    def touch(self) -> None:
        """It needs longer: nsqd's timeout for it starts again."""
        if self.is_answered:
            raise self._answered_before()
        self._answers.touch(self.id)

    @property
    def published_at(self) -> datetime:
        """When it was published, to the microsecond."""
        seconds, rest_ns = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1000)

    @property
    def address(self) -> str:
        """The nsqd that it came from."""
        return self._answers.address

    def make_thread_safe(self, put: Callable[..., None]) -> None:
        """Allows any thread to answer this message. `put` schedules a function with its arguments
        in the loop of the connection."""
        self._answers = _ThreadSafeAnswers(self._answers, put)

    def is_from(self, connection: AckChannel) -> bool:
        """Whether it came on this connection."""
        return self._answers is connection

    def _answered_before(self) -> ClientError:
        return ClientError(f"message {self.id.decode('ascii', 'replace')} is answered already")


class _ThreadSafeAnswers:
    """Schedules answers in the loop of the connection."""

    __slots__ = ("_answers", "_put")

    def __init__(self, answers: AckChannel, put: Callable[..., None]) -> None:
        self._answers = answers
        self._put = put

    @property
    def address(self) -> str:
        return self._answers.address

    def finish(self, message_id: bytes) -> None:
        self._put(self._answers.finish, message_id)

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self._put(self._answers.requeue, message_id, delay_ms)

    def touch(self, message_id: bytes) -> None:
        self._put(self._answers.touch, message_id)
