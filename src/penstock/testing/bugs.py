"""A `report_bug` for tests: unexpected exceptions, which nsqd only logs, fail the test."""

__all__ = ["raise_bug"]


def raise_bug(_doing: str, bug: Exception) -> None:
    """Raises the exception instead of reporting it."""
    raise bug
