"""Something in a data path that is not as it was written. (Being written.)"""

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What recovery did, or what a check found; `str` of it is one line for a person."""

    path: str
    problem: str
    is_damage: bool
    position: int = 0
    byte_count: int = 0
    first_seq: int = 0
    next_seq: int = 0
