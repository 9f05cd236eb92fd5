"""Numbers as people read them. Pure."""

__all__ = ["counted", "grouped", "per_second"]


def grouped(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def per_second(rate: float | None) -> str:
    """A rate to three digits or to the unit: `0.25`, `12.5`, `1,234`; `-` if it is not known."""
    if rate is None:
        return "-"
    if rate == 0 or rate >= 99.95:
        return f"{rate:,.0f}"
    return f"{rate:.2f}" if rate < 9.995 else f"{rate:.1f}"


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
