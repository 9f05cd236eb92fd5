"""What the registry is made of: producers, and the keys under which they are registered.

A producer and its registrations know each other: it stands in `Registration.producers` if and only
if that stands in its `topics` or `channels`. The registry alone changes either.
"""

from typing import Final, NamedTuple

from penstock.common.clock import Clock
from penstock.protocol.lookup_v1 import NsqdInfo

__all__ = ["CHANNEL", "CLIENT", "TOPIC", "UNKNOWN_INDEX", "Producer", "Registration", "Tombstone"]

# The categories of keys.
CLIENT: Final = "client"
TOPIC: Final = "topic"
CHANNEL: Final = "channel"

UNKNOWN_INDEX: Final = 0
"""The index of every topic that is not known."""


class Tombstone(NamedTuple):
    """Hides a producer from the lookups of a topic, for a while."""

    at_ns: int
    at_wall_ns: int


class Producer:
    """An nsqd, for as long as its connection lasts."""

    __slots__ = (
        "channels",
        "draining",
        "info",
        "is_active",
        "remote_address",
        "rendered",
        "seen_ns",
        "seen_wall_ns",
        "topics",
    )

    def __init__(self, remote_address: str, info: NsqdInfo, clock: Clock) -> None:
        self.remote_address = remote_address
        self.info = info
        self.seen_ns = clock.now_ns()
        self.seen_wall_ns = clock.wall_ns()
        self.is_active = True
        self.draining = False
        self.topics: dict[Registration, None] = {}
        self.channels: dict[Registration, None] = {}
        self.rendered = b""  # what HTTP keeps, so as not to render it at every lookup

    @property
    def node(self) -> str:
        """What `/topic/tombstone` calls it."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


class Registration:
    """A key, and the producers under it with their tombstones."""

    __slots__ = ("category", "channel", "index", "producers", "topic")

    def __init__(self, category: str, topic: str = "", channel: str = "") -> None:
        self.category = category
        self.topic = topic
        self.channel = channel
        self.producers: dict[Producer, Tombstone | None] = {}
        self.index = UNKNOWN_INDEX  # of a topic alone

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.topic} subkey:{self.channel}"
