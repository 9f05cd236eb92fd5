"""When a task is due: what its message's headers say of it. Pure: the time is handed in."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

__all__ = ["seconds_until_due"]


def seconds_until_due(headers: Mapping[str, Any], now: datetime) -> float:
    """How long the task of a message with these headers has to wait; 0 if not at all.

    An eta without a time zone means what the application's configuration says, which is not known
    here; such a task is Celery's to hold, like one whose eta cannot be read.
    """
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    if due.tzinfo is None:
        return 0.0
    return max((due - now).total_seconds(), 0.0)
