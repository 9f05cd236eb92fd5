"""The receiver without kombu, in cases that kombu cannot produce."""

import socket
import threading
from datetime import UTC, datetime

import pytest

from penstock.celery.receiver import Receiver, seconds_until_due
from penstock.celery.settings import Settings
from penstock.client import ClientConfig
from penstock.common.errors import ClientClosedError


def test_subscribing_during_close_does_not_hang() -> None:
    outcomes: list[Exception] = []

    def subscribe() -> None:
        try:
            receiver.subscribe("queue", "topic", "channel", prefetch_count=1)
        except ClientClosedError as closed:
            outcomes.append(closed)

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        receiver = Receiver(Settings(nsqds=[address], lookupds=[], config=ClientConfig()))
        subscribing = threading.Thread(target=subscribe, daemon=True)
        subscribing.start()
        connected, _ = hanging.accept()
        with connected:
            receiver.close()
            subscribing.join(120)

    assert ["the connection was closed during the operation"] == list(map(str, outcomes))


NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("2026-11-15T12:01:00+00:00", 60.0),
        ("2026-11-15T13:00:00.250000+01:00", 0.25),
        ("2026-11-15T12:01:00Z", 60.0),
        ("2026-11-15T11:00:00+00:00", 0.0),
        ("2026-11-15T12:01:00", 0.0),  # only the application knows the time zone
        ("tomorrow", 0.0),
        (None, 0.0),
        (7, 0.0),
    ],
)
def test_a_task_waits_until_its_eta(eta: object, seconds: float) -> None:
    assert seconds == seconds_until_due({"eta": eta}, NOON)


def test_a_message_that_is_no_task_does_not_wait() -> None:
    assert 0.0 == seconds_until_due({}, NOON)
