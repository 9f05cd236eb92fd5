"""A bug that nsqd would log and survive fails the test."""

__all__ = ["raise_bug"]


def raise_bug(_doing: str, bug: Exception) -> None:
    """Stands where nsqd reports unexpected exceptions."""
    raise bug
