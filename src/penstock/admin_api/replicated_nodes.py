"""The replicated nodes of a cluster: their status, and changes of their records in etcd."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from penstock.admin_api.nsqd_api import api_url
from penstock.common.errors import HttpRequestError, ReplicationError
from penstock.net.http_client.client import HttpClient
from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.etcd import read_cluster, write_record
from penstock.replication.etcd_client import EtcdConfig
from penstock.replication.node_record import (
    MemberAddress,
    NodeRecord,
    force_leader,
    prefer_leader,
    remove_member,
)
from penstock.replication.status import FollowerStatus, ReplicationStatus

__all__ = ["MemberStatus", "NodeStatus", "ReplicatedNodes", "check_can_force"]

# A record that changes this often between reading and writing is not changed.
ATTEMPTS = 5

POLL_SECONDS = 0.2


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a node."""

    member: str
    is_alive: bool = msgspec.field(name="alive")
    is_leader: bool = msgspec.field(name="leader")
    is_in_sync: bool = msgspec.field(name="in_sync")
    tcp_address: str = ""
    """Empty if the member is not running."""
    http_address: str = ""
    version: str = ""
    replication: FollowerStatus | None = None
    """For a follower: what the leader says about it; None if the leader did not answer."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    node: str
    leader: str | None
    """None if no member leads at the moment."""
    last_leader: str
    epoch: int
    in_sync: list[str]
    members: list[MemberStatus]
    preferred_leader: str | None
    status: ReplicationStatus | None = None
    """What the leader answers; None if it cannot be reached."""
    error: str = ""
    """Why the leader cannot be reached."""


class ReplicatedNodes:
    """The nodes of one cluster."""

    def __init__(
        self,
        etcd: EtcdConfig,
        cluster: str,
        http: HttpClient,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._etcd = etcd
        self._cluster = cluster
        self._http = http
        self._headers = tuple(headers)

    async def status(self) -> list[NodeStatus]:
        """All nodes. Raises ReplicationError if etcd cannot be used, or has no such cluster."""
        views = await read_cluster(self._etcd, self._cluster)
        if not views:
            raise ReplicationError(f"etcd has no cluster {self._cluster}")
        return await asyncio.gather(*(self._node(name, view) for name, view in views.items()))

    async def view(self, node: str) -> tuple[NodeRecord, ClusterView]:
        """The record of a node. Raises ReplicationError, also if there is no such node."""
        views = await read_cluster(self._etcd, self._cluster)
        view = views.get(node)
        if view is None or view.record is None:
            known = ", ".join(name for name, each in views.items() if each.record is not None)
            raise ReplicationError(
                f"cluster {self._cluster} has no node {node}; nodes: {known or 'none'}"
            )
        return view.record, view

    async def move(self, node: str, member: str) -> ClusterView:
        """Make a member the preferred leader: it takes over once it is in sync. Returns the view
        before the change. Raises ReplicationError."""
        return await self._change(node, lambda record, _: prefer_leader(record, member))

    async def remove_member(self, node: str, member: str) -> None:
        """Remove a member that will not return. Raises ReplicationError, also if it is running."""

        def change(record: NodeRecord, view: ClusterView) -> NodeRecord:
            removed = remove_member(record, member)
            if member in view.alive:
                raise ReplicationError(f"{member} is running and would join again: stop it first")
            return removed

        await self._change(node, change)

    async def force_leader(self, node: str, member: str) -> None:
        """Make a member the leader although it may lack acknowledged messages. Raises
        ReplicationError, also if a member that lacks none is running."""

        def change(record: NodeRecord, view: ClusterView) -> NodeRecord:
            address = check_can_force(node, member, record, view)
            return force_leader(record, member, address.incarnation)

        await self._change(node, change)

    async def wait_for_leader(self, node: str, member: str, timeout_seconds: float) -> bool:
        """Wait until a member leads; returns whether it does. Raises ReplicationError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            record, view = await self.view(node)
            if _leader_of(record, view) == member:
                return True
            if loop.time() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)

    async def _change(
        self, node: str, change: Callable[[NodeRecord, ClusterView], NodeRecord]
    ) -> ClusterView:
        """Compute a new record from the current one, and store it; again if another process has
        changed the record meanwhile."""
        for _ in range(ATTEMPTS):
            record, view = await self.view(node)
            changed = change(record, view)
            if changed == record:
                return view
            result = await write_record(self._etcd, self._cluster, node, changed, view.revision)
            if result is WriteResult.STORED:
                return view
            if result is WriteResult.UNKNOWN:
                raise ReplicationError(
                    f"etcd did not answer: the change of node {node} may have been stored or not"
                )
        raise ReplicationError(f"the record of node {node} changes all the time: try again")

    async def _node(self, name: str, view: ClusterView) -> NodeStatus:
        record = view.record
        if record is None:
            members = [_member(each, view, None) for each in sorted(view.alive)]
            return NodeStatus(
                node=name,
                leader=None,
                last_leader="",
                epoch=0,
                in_sync=[],
                members=members,
                preferred_leader=None,
            )
        leader = _leader_of(record, view)
        status: ReplicationStatus | None = None
        error = ""
        if leader is not None:
            try:
                status = await self._ask(view.alive[leader])
            except HttpRequestError as failure:
                error = str(failure)
        return NodeStatus(
            node=name,
            leader=leader,
            last_leader=record.leader,
            epoch=record.epoch,
            in_sync=sorted(record.in_sync_members),
            members=[_member(each, view, status) for each in record.members],
            preferred_leader=record.preferred_leader,
            status=status,
            error=error,
        )

    async def _ask(self, leader: MemberAddress) -> ReplicationStatus:
        url = api_url(_address(leader, leader.http_port), "/replication", {})
        return await self._http.get_json(url, ReplicationStatus, headers=self._headers)


def check_can_force(node: str, member: str, record: NodeRecord, view: ClusterView) -> MemberAddress:
    """The entry of the member. Raises ReplicationError if the member is not running, or a member
    with all acknowledged messages is."""
    if member not in record.members:
        known = ", ".join(record.members)
        raise ReplicationError(f"{member} is not a member of node {node}; members: {known}")
    for each in record.in_sync:
        address = view.alive.get(each.member)
        if address is not None and address.incarnation == each.incarnation:
            raise ReplicationError(
                f"{each.member} is running and in sync: it leads node {node} or takes over by "
                "itself, and no message is lost"
            )
    if member not in view.alive:
        raise ReplicationError(f"{member} is not running: start it first")
    return view.alive[member]


def _leader_of(record: NodeRecord, view: ClusterView) -> str | None:
    address = view.alive.get(record.leader)
    return record.leader if address and address.leading_epoch == record.epoch else None


def _member(name: str, view: ClusterView, status: ReplicationStatus | None) -> MemberStatus:
    address = view.alive.get(name)
    record = view.record
    rows = status.followers if status is not None else None
    followers = {each.member: each for each in rows or ()}
    return MemberStatus(
        member=name,
        is_alive=address is not None,
        is_leader=record is not None and _leader_of(record, view) == name,
        is_in_sync=record is not None and name in record.in_sync_members,
        tcp_address=_address(address, address.tcp_port) if address else "",
        http_address=_address(address, address.http_port) if address else "",
        version=address.version if address else "",
        replication=followers.get(name),
    )


def _address(member: MemberAddress, port: int) -> str:
    host = member.broadcast_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
