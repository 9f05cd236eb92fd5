"""How near a consumer is to this node, by what both say of where they are.

A message that stays in its zone is cheaper and quicker than one that leaves it, so a node that is
told its own place can prefer consumers near it. One that is told nothing prefers nobody, and then
everybody is equally far.
"""

from enum import IntEnum
from typing import NamedTuple

__all__ = ["UNKNOWN_LOCATION", "Locality", "Location", "locality"]


class Location(NamedTuple):
    """Where a node or a consumer is; an empty name is not known."""

    zone: str = ""
    region: str = ""


UNKNOWN_LOCATION = Location()


class Locality(IntEnum):
    """The nearest first."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


def locality(ours: Location | None, theirs: Location) -> Locality:
    """How near `theirs` is to `ours`, which is None on a node that prefers nobody."""
    if ours is None:
        return Locality.GLOBAL
    if ours.zone and ours.zone == theirs.zone:
        return Locality.ZONE
    if ours.region and ours.region == theirs.region:
        return Locality.REGION
    return Locality.GLOBAL
