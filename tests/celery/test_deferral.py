"""When a task is due, as its headers say."""

from datetime import UTC, datetime

import pytest

from penstock.celery.deferral import seconds_until_due

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("2026-11-15T12:01:00+00:00", 60.0),
        ("2026-11-15T13:00:00.250000+01:00", 0.25),
        ("2026-11-15T12:01:00Z", 60.0),
        ("2026-11-15T11:00:00+00:00", 0.0),
        ("2026-11-15T12:01:00", 0.0),  # in which time zone, only the application knows
        ("tomorrow", 0.0),
        (None, 0.0),
        (7, 0.0),
    ],
)
def test_a_task_waits_until_its_eta(eta: object, seconds: float) -> None:
    assert seconds == seconds_until_due({"eta": eta}, NOON)


def test_a_message_that_is_no_task_does_not_wait() -> None:
    assert 0.0 == seconds_until_due({}, NOON)
