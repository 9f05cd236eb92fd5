"""The record of a replicated node: who leads it, and who is in sync. Pure.

A node is a data path that several members hold copies of. etcd holds one record per node, as JSON:

    {"node_uuid": "5f0c...", "epoch": 7, "leader": "a",
     "in_sync": [{"member": "a", "incarnation": "9"}, {"member": "b", "incarnation": "0"}],
     "members": ["a", "b", "c"], "preferred_leader": null, "format": 1}

Every change is computed by a function of this module from the record that was read, and is stored
only if the record has not changed meanwhile. So the rules below hold whatever the order of events:

* A new leader gets an epoch that no leader had before. Also a leader that restarts does: so one
  epoch has one writer.
* Only a member that is in sync, with the same incarnation, becomes leader. It has every
  acknowledged message.
* Only the leader changes who is in sync, and it is always in sync itself.

An incarnation is a random id that a member keeps as long as its copy is complete. A member whose
machine went down without a clean stop may have lost writes. It takes a new incarnation, and is then
no longer in sync, whatever the record says.
"""

import msgspec

from penstock.common.errors import ReplicationError

__all__ = [
    "FORMAT",
    "InSyncMember",
    "MemberAddress",
    "NodeRecord",
    "add_in_sync",
    "add_member",
    "claim_leadership",
    "create_record",
    "decode_record",
    "encode_record",
    "force_leader",
    "prefer_leader",
    "remove_in_sync",
    "remove_member",
]

FORMAT = 1


class InSyncMember(msgspec.Struct, frozen=True):
    """A member that has every acknowledged message, as long as it keeps this incarnation."""

    member: str
    incarnation: str


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replicated node, as etcd stores it."""

    node_uuid: str
    """Random; the data paths of all members contain it, so that a foreign one is recognised."""
    epoch: int
    leader: str
    in_sync: tuple[InSyncMember, ...]
    """The leader and the followers that must have a message before it is acknowledged."""
    members: tuple[str, ...]
    """All members that ever joined and were not removed, sorted."""
    preferred_leader: str | None = None
    is_forced: bool = False
    """An operator made the leader lead although it may lack acknowledged messages, and no follower
    has caught up since. Such a leader skips the numbers that may have been used."""
    format: int = FORMAT

    def is_in_sync(self, member: str, incarnation: str) -> bool:
        """Whether a member is in sync with this incarnation, so that it may become leader."""
        return InSyncMember(member, incarnation) in self.in_sync

    @property
    def in_sync_members(self) -> frozenset[str]:
        """Names of the members that are in sync."""
        return frozenset(each.member for each in self.in_sync)


class MemberAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address and state of a running member. etcd deletes this entry soon after the member has
    stopped."""

    member: str
    incarnation: str
    session: str
    """Random for each start of the process: tells two processes with the same name apart."""
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    leading_epoch: int = 0
    """The epoch in which the member leads; 0 if it does not lead."""
    ended_epoch: int = 0
    """The epoch in which the member has led and does not lead any more."""


_decoder = msgspec.json.Decoder(NodeRecord)


def encode_record(record: NodeRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> NodeRecord:
    """Raises ReplicationError if the record is invalid, or was written by a later release."""
    try:
        found_format = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if isinstance(found_format, int) and found_format > FORMAT:
            raise ReplicationError(
                f"the cluster has format {found_format}, written by a newer version; "
                f"this one supports up to {FORMAT}"
            )
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ReplicationError(f"etcd contains an invalid record: {error}") from error


# Changes


def create_record(node_uuid: str, member: str, incarnation: str) -> NodeRecord:
    """The first record of a node, led by its first member."""
    return NodeRecord(
        node_uuid=node_uuid,
        epoch=1,
        leader=member,
        in_sync=(InSyncMember(member, incarnation),),
        members=(member,),
    )


def add_member(record: NodeRecord, member: str) -> NodeRecord:
    """The record with another member, which is not in sync yet."""
    members = tuple(sorted({*record.members, member}))
    return msgspec.structs.replace(record, members=members)


def claim_leadership(record: NodeRecord, member: str, incarnation: str) -> NodeRecord:
    """The record with this member as leader, in a new epoch. Raises ReplicationError if the member
    is not in sync."""
    if not record.is_in_sync(member, incarnation):
        raise ReplicationError(f"{member} is not in sync and cannot lead")
    return msgspec.structs.replace(record, leader=member, epoch=record.epoch + 1)


def add_in_sync(record: NodeRecord, member: str, incarnation: str) -> NodeRecord:
    """The record with this follower in sync."""
    others = tuple(each for each in record.in_sync if each.member != member)
    added = InSyncMember(member, incarnation)
    return msgspec.structs.replace(record, in_sync=(*others, added), is_forced=False)


def remove_in_sync(record: NodeRecord, members: frozenset[str]) -> NodeRecord:
    """The record with these followers no longer in sync. The leader always stays in sync."""
    removed = members - {record.leader}
    kept = tuple(each for each in record.in_sync if each.member not in removed)
    return msgspec.structs.replace(record, in_sync=kept)


def prefer_leader(record: NodeRecord, member: str) -> NodeRecord:
    """The record with this member as preferred leader: it takes over once it is in sync. Raises
    ReplicationError if it is not a member."""
    if member not in record.members:
        raise ReplicationError(f"{member} is not a member; members: {', '.join(record.members)}")
    return msgspec.structs.replace(record, preferred_leader=member)


def remove_member(record: NodeRecord, member: str) -> NodeRecord:
    """The record without this member, which will not return. Raises ReplicationError if it leads or
    is not a member."""
    if member not in record.members:
        raise ReplicationError(f"{member} is not a member; members: {', '.join(record.members)}")
    if member == record.leader:
        raise ReplicationError(f"{member} is the leader; move the leadership to another member")
    return msgspec.structs.replace(
        record,
        members=tuple(each for each in record.members if each != member),
        in_sync=tuple(each for each in record.in_sync if each.member != member),
        preferred_leader=None if record.preferred_leader == member else record.preferred_leader,
    )


def force_leader(record: NodeRecord, member: str, incarnation: str) -> NodeRecord:
    """The record with this member as leader, although it may lack acknowledged messages. Only this
    member is in sync; the others follow it, and remove the messages that it lacks. Raises
    ReplicationError if it is not a member."""
    if member not in record.members:
        raise ReplicationError(f"{member} is not a member; members: {', '.join(record.members)}")
    return msgspec.structs.replace(
        record,
        leader=member,
        epoch=record.epoch + 1,
        in_sync=(InSyncMember(member, incarnation),),
        is_forced=True,
    )
