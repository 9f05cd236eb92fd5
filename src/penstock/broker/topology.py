"""Topology-aware consumption: a node may prefer consumers in its own zone or region.

Messages that stay in their zone are cheaper and faster. A node without a location prefers no
consumer.
"""

from enum import IntEnum
from typing import NamedTuple

__all__ = ["UNKNOWN_LOCATION", "Locality", "Location", "locality"]


class Location(NamedTuple):
    """Zone and region of a node or a consumer; empty if unknown."""

    zone: str = ""
    region: str = ""


UNKNOWN_LOCATION = Location()


class Locality(IntEnum):
    """Distance between a node and a consumer, nearest first."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


def locality(ours: Location | None, theirs: Location) -> Locality:
    """The locality of `theirs`; `ours` is None on a node that prefers no consumer."""
    if ours is None:
        return Locality.GLOBAL
    if ours.zone and ours.zone == theirs.zone:
        return Locality.ZONE
    if ours.region and ours.region == theirs.region:
        return Locality.REGION
    return Locality.GLOBAL
