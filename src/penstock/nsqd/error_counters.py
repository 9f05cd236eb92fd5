"""How often nsqd has refused somebody something, by reason. Shown by `/metrics`."""

__all__ = ["Refusals"]


class Refusals:
    """Counts refusals. A reason is a word or two of ours, `like_this`, never a peer's text."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, reason: str) -> None:
        """Counts one more refusal for `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
