"""Prometheus metrics of a member of a replicated node."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.net.prometheus import Family, Kind, Sample, labels
from penstock.replication.status import FollowerStatus, ReplicationStatus

__all__ = ["REPLICATION_FAMILIES", "replication_metrics"]


def replication_metrics(
    status: ReplicationStatus,
) -> Iterator[tuple[Family, Iterable[Sample]]]:
    """All families with their samples. Followers have no samples of the leader's families."""
    node = labels(cluster=status.cluster, node=status.node)
    for family, value in _MEMBER:
        yield family, [(node, value(status))]
    followers = status.followers or ()
    for family, follower_value in _FOLLOWER:
        values = ((each.member, follower_value(each)) for each in followers)
        yield (
            family,
            [
                (labels(cluster=status.cluster, node=status.node, follower=member), shown)
                for member, shown in values
                if shown is not None
            ],
        )


def _member(name: str, kind: Kind, help: str) -> Family:
    return Family(f"nsqd_replication_{name}", kind, help, ("cluster", "node"))


def _follower(name: str, help: str) -> Family:
    labels = ("cluster", "node", "follower")
    return Family(f"nsqd_replication_follower_{name}", "gauge", help, labels)


_MEMBER: Final[list[tuple[Family, Callable[[ReplicationStatus], float]]]] = [
    (
        _member("leading", "gauge", "1 if this member leads the node, otherwise 0."),
        lambda status: status.is_leading,
    ),
    (
        _member("epoch", "gauge", "Epoch of the node; it grows with every takeover."),
        lambda status: status.epoch,
    ),
    (
        _member("replicas", "gauge", "Number of members that the node is meant to have."),
        lambda status: status.replicas,
    ),
    (
        _member("in_sync", "gauge", "Members that have every acknowledged message."),
        lambda status: len(status.in_sync),
    ),
    (
        _member("min_in_sync", "gauge", "With fewer members in sync, publishes are refused."),
        lambda status: status.min_in_sync,
    ),
    (
        _member("etcd_connected", "gauge", "1, or 0 if this member cannot reach etcd."),
        lambda status: status.etcd_connected,
    ),
    (
        _member(
            "leader_connected",
            "gauge",
            "1 if this member leads or is connected to the leader, otherwise 0.",
        ),
        lambda status: (
            status.is_leading or (status.following is not None and status.following.is_connected)
        ),
    ),
    (
        _member("takeovers_total", "counter", "How often this process became leader."),
        lambda status: status.takeovers,
    ),
]

_FOLLOWER: Final[list[tuple[Family, Callable[[FollowerStatus], float | None]]]] = [
    (
        _follower("connected", "1 if the follower is connected to this leader, otherwise 0."),
        lambda follower: follower.is_connected,
    ),
    (
        _follower("in_sync", "1 if the follower has every acknowledged message, otherwise 0."),
        lambda follower: follower.is_in_sync,
    ),
    (
        _follower("lag_messages", "Messages that the follower has not acknowledged."),
        lambda follower: follower.lag_messages,
    ),
    (
        _follower("lag_bytes", "Bytes of the logs that the follower has not acknowledged."),
        lambda follower: follower.lag_bytes,
    ),
    (
        _follower(
            "lag_seconds", "Age of the oldest message that the follower has not acknowledged."
        ),
        lambda follower: follower.lag_seconds,
    ),
]

REPLICATION_FAMILIES: Final = (
    *(family for family, _ in _MEMBER),
    *(family for family, _ in _FOLLOWER),
)
