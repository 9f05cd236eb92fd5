"""What the simulation reports: something that must never be true, and was."""

__all__ = ["ViolationError"]


class ViolationError(AssertionError):
    """A promise has been broken."""
