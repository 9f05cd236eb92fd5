"""Collects what `/replication`, `/metrics` and `/stats` of a member show about replication."""

from typing import NamedTuple

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import StorageError
from penstock.nsqd.following import Following
from penstock.nsqd.options import NsqdOptions
from penstock.protocol import frames
from penstock.replication.leader import FollowerLink, Leader
from penstock.replication.member import Member
from penstock.replication.status import FollowerStatus, FollowingStatus, ReplicationStatus

__all__ = ["Takeovers", "collect_status", "min_in_sync_of"]


class Takeovers(NamedTuple):
    """How often a process became leader, and when last."""

    total: int = 0
    last_at_ns: int = 0


def min_in_sync_of(options: NsqdOptions) -> int:
    """Number of members that must have a message before it is acknowledged."""
    return options.min_in_sync or options.replicas // 2 + 1


def collect_status(
    options: NsqdOptions,
    member_name: str,
    member: Member,
    *,
    leader: Leader | None,
    following: Following,
    takeovers: Takeovers,
    clock: Clock,
) -> ReplicationStatus:
    """The current status. `leader` is None while the member does not lead."""
    view = member.view
    record = view.record if view is not None else None
    return ReplicationStatus(
        cluster=options.cluster,
        node=options.node,
        member=member_name,
        role=member.role.name.lower(),
        etcd_connected=member.is_connected,
        replicas=options.replicas,
        min_in_sync=min_in_sync_of(options),
        epoch=record.epoch if record is not None else 0,
        leader=record.leader if record is not None else "",
        in_sync=sorted(record.in_sync_members) if record is not None else [],
        members=list(record.members) if record is not None else [],
        alive=sorted(view.alive) if view is not None else [],
        takeovers=takeovers.total,
        last_takeover=takeovers.last_at_ns / SECOND_NS if takeovers.total else None,
        followers=None if leader is None else _followers(leader, clock.wall_ns()),
        following=None if leader is not None else _following_status(following),
    )


def _followers(leader: Leader, wall_ns: int) -> list[FollowerStatus]:
    others = [each for each in leader.record.members if each != leader.settings.member]
    return [_follower_status(leader, member, wall_ns) for member in others]


def _follower_status(leader: Leader, member: str, wall_ns: int) -> FollowerStatus:
    link = leader.latest_links.get(member)
    is_connected = member in leader.links
    is_in_sync = member in leader.record.in_sync_members
    if link is None:
        return FollowerStatus(member=member, is_connected=is_connected, is_in_sync=is_in_sync)
    progress = None if link.has_caught_up or not is_connected else link.catch_up_progress
    lags = link.lag_messages()
    return FollowerStatus(
        member=member,
        is_connected=is_connected,
        is_in_sync=is_in_sync,
        lag_messages=sum(lags.values()),
        lag_bytes=link.lag_bytes(),
        lag_seconds=_lag_seconds(leader, link, lags, wall_ns),
        catch_up_bytes_sent=None if progress is None else progress[0],
        catch_up_bytes_total=None if progress is None else progress[1],
    )


def _lag_seconds(
    leader: Leader, link: FollowerLink, lags: dict[str, int], wall_ns: int
) -> float | None:
    """Age of the oldest message that the follower lacks; of one topic only, so that a request reads
    one batch at most."""
    if not lags:
        return 0.0
    topic = leader.topics[max(lags, key=lags.__getitem__)]
    try:
        runs = topic.store.log.read(link.confirmed.get(topic, 0), 1)
    except StorageError:
        return None
    if not runs:
        return 0.0
    return max(wall_ns - frames.timestamp_ns(runs[0].frames[0]), 0) / SECOND_NS


def _following_status(following: Following) -> FollowingStatus | None:
    leader = following.leader
    if leader is None:
        return None
    follower = following.follower
    return FollowingStatus(
        leader_address=f"{leader.broadcast_address}:{leader.tcp_port}",
        is_connected=follower is not None and follower.epoch > 0,
        applied_position=follower.position if follower is not None else 0,
        acknowledged_position=follower.acked_position if follower is not None else 0,
        last_contact_seconds=following.last_contact_seconds,
    )
