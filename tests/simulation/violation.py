"""The error for a violated guarantee."""

__all__ = ["ViolationError"]


class ViolationError(AssertionError):
    """A guarantee is violated."""
