"""Deliberate bugs, which a simulation must find."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Mutation"]


@dataclass(frozen=True)
class Mutation:
    """One deliberate bug."""

    name: str
    owner: Any
    attribute: str
    replacement: Callable[[Any], Any]
    """Returns the wrong function for the right one."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Apply the bug during the block."""
        right = self.owner.__dict__[self.attribute]
        wrong = self.replacement(right.fget if isinstance(right, property) else right)
        setattr(
            self.owner, self.attribute, property(wrong) if isinstance(right, property) else wrong
        )
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, right)
