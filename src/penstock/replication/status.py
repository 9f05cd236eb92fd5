"""Schema of the response to `GET /replication`: role, leader and lag of a member."""

import msgspec

__all__ = ["FollowerStatus", "FollowingStatus", "ReplicationStatus"]


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower, as its leader sees it. A figure is None if the follower has not been connected
    since this member leads."""

    member: str
    is_connected: bool = msgspec.field(name="connected")
    is_in_sync: bool = msgspec.field(name="in_sync")
    lag_messages: int | None = None
    """Messages of all topics that the follower has not acknowledged."""
    lag_bytes: int | None = None
    """Bytes of the logs that the follower has not acknowledged."""
    lag_seconds: float | None = None
    """Age of the oldest message that the follower has not acknowledged, in the topic with the most
    of them; 0 if there is none."""
    catch_up_bytes_sent: int | None = None
    """While the follower catches up: how much was sent to it, out of `catch_up_bytes_total`."""
    catch_up_bytes_total: int | None = None


class FollowingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of a follower to its leader."""

    leader_address: str
    is_connected: bool = msgspec.field(name="connected")
    applied_position: int
    """Number of messages of the stream that were written since the connection was made."""
    acknowledged_position: int
    last_contact_seconds: float | None
    """Time since the leader has sent something; None if there is no connection."""


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a member, and the record of its node in the member's last view."""

    cluster: str
    node: str
    member: str
    role: str
    etcd_connected: bool
    replicas: int
    min_in_sync: int
    epoch: int = 0
    """0 before the member has read the record."""
    leader: str = ""
    in_sync: list[str] = []
    members: list[str] = []
    alive: list[str] = []
    """The members that are running."""
    takeovers: int = 0
    """How often this process became leader."""
    last_takeover: float | None = None
    """When it last became leader, in seconds since the epoch."""
    followers: list[FollowerStatus] | None = None
    """None if this member does not lead."""
    following: FollowingStatus | None = None
    """None if this member does not follow."""

    @property
    def is_leading(self) -> bool:
        return self.followers is not None

    @property
    def slowest_follower(self) -> FollowerStatus | None:
        """The follower with the largest known lag; None if no lag is known."""
        known = [each for each in self.followers or () if each.lag_messages is not None]
        return max(known, key=lambda each: each.lag_messages or 0, default=None)
