"""`report_bug` for tests: an unexpected exception, which nsqd only logs, fails the test."""

__all__ = ["raise_bug"]


def raise_bug(_doing: str, bug: Exception) -> None:
    """Raise the exception instead of reporting it."""
    raise bug
