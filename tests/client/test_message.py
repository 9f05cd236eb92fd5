from datetime import UTC, datetime, timedelta

import pytest

from penstock.client import Message
from penstock.common.errors import ClientError

ID = b"0123456789abcdef"


class Recorder:
    """A connection that records its calls."""

    address = "127.0.0.1:4150"

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def finish(self, message_id: bytes) -> None:
        self.told.append(("FIN", message_id))

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self.told.append(("REQ", message_id, delay_ms))

    def touch(self, message_id: bytes) -> None:
        self.told.append(("TOUCH", message_id))


def message(recorder: Recorder) -> Message:
    return Message(recorder, 1_700_000_000_123_456_789, 2, ID, b"body")


def test_a_message_is_answered_once() -> None:
    recorder = Recorder()
    finished, requeued = message(recorder), message(recorder)

    finished.touch()
    finished.finish()
    requeued.requeue(timedelta(seconds=1.5))

    assert [("TOUCH", ID), ("FIN", ID), ("REQ", ID, 1500)] == recorder.told
    for again in (finished.finish, finished.requeue, finished.touch, requeued.finish):
        with pytest.raises(ClientError, match="message 0123456789abcdef is already answered"):
            again()


def test_a_delay_may_be_seconds_and_may_not_be_negative() -> None:
    recorder = Recorder()
    requeued = message(recorder)

    with pytest.raises(ValueError, match="negative"):
        requeued.requeue(-1)
    requeued.requeue(0.25)

    assert [("REQ", ID, 250)] == recorder.told


def test_the_repr_shows_id_attempts_and_body() -> None:
    shown = message(Recorder())

    assert "<Message 0123456789abcdef attempts=2 b'body'>" == repr(shown)
    assert datetime(2023, 11, 14, 22, 13, 20, 123456, UTC) == shown.published_at
    assert "127.0.0.1:4150" == shown.address
