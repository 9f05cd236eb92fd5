"""What the simulation reports: something that must never be true, and was."""

__all__ = ["Violation"]


class Violation(AssertionError):
    """A promise has been broken."""
