"""A member of a replicated node: decides whether it leads or follows. Pure.

The member acts on views of the coordination service:

* Its own entry is held by another process: it waits, and gives up if the other one stays.
* There is no record: it creates one, and leads.
* The record names another leader that is running: it follows.
* The leader has gone, and this member is in sync: it stops following, and claims the leadership. It
  leads when a view shows that its claim was stored.
* It leads, and the record names another leader or epoch: it stops leading.

Before they claim, followers wait for a short time that differs between them, so that the first
claim usually succeeds. The waits save retries; safety does not depend on them.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol

import msgspec

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import ReplicationError
from penstock.common.logs import Logger
from penstock.replication.coordination import ClusterView, Coordinator, WriteResult
from penstock.replication.node_record import (
    MemberAddress,
    NodeRecord,
    add_member,
    claim_leadership,
    create_record,
)

__all__ = ["Member", "MemberActions", "MemberIdentity", "Role"]

# Followers claim the leadership one after the other, with this delay.
_CLAIM_DELAY_NS = SECOND_NS // 5

# A claim or another write without an answer is repeated after this time.
_RETRY_NS = SECOND_NS


class Role(Enum):
    """State of a member."""

    WAITING = auto()  # For a view, a leader or its own entry.
    FOLLOWING = auto()
    CLAIMING = auto()
    LEADING = auto()
    STEPPING_DOWN = auto()
    FAILED = auto()


class MemberIdentity(NamedTuple):
    """Identity of a member, from its options and its data path."""

    cluster: str
    node: str
    member: str
    incarnation: str
    address: MemberAddress
    node_uuid: str
    """Empty if the data path has never belonged to a replicated node."""
    has_data: bool
    """Whether the data path contained topics at the start."""
    lease_ns: int


class MemberActions(Protocol):
    """Actions that a member requests from its owner. Each method returns at once."""

    def join(self, node_uuid: str) -> None:
        """Store in the data path that it belongs to this node."""

    def lead(self, view: ClusterView) -> None:
        """Start to serve as the leader of `view.record.epoch`."""

    def leader_view(self, view: ClusterView) -> None:
        """Pass a new view on to the leader that is running."""

    def stop_leading(self) -> None:
        """Stop confirming messages before this call returns. Then close the clients and the data
        path, and call `Member.stopped_leading`."""

    def follow(self, leader: MemberAddress, epoch: int) -> None:
        """Connect to this leader, and disconnect from any other."""

    def stop_following(self) -> None:
        """Stop acknowledging messages before this call returns."""

    def fail(self, error: ReplicationError) -> None:
        """Stop the process with this error: the member cannot join its node, and has changed
        nothing."""


class Member:
    """One member. Implements `ViewListener`."""

    def __init__(
        self,
        identity: MemberIdentity,
        coordinator: Coordinator,
        actions: MemberActions,
        clock: Clock,
        log: Logger,
        new_uuid: Callable[[], str],
    ) -> None:
        self.role = Role.WAITING
        self.epoch = 0
        """In which it leads; 0 if it does not."""
        self.view: ClusterView | None = None
        self.is_connected = False
        """To the coordination service."""
        self._identity = identity
        self._name = identity.member
        self._node_uuid = identity.node_uuid
        self._address = identity.address
        self._coordinator = coordinator
        self._actions = actions
        self._now_ns = clock.now_ns
        self._log = log
        self._new_uuid = new_uuid
        self._followed: tuple[str, int] | None = None
        self._claimed_epoch = 0
        self._is_writing = False
        self._retry_at_ns = 0
        self._claim_not_before_ns = 0
        self._missing_epoch = 0
        self._since: dict[str, int] = {}
        """When the member has first seen a condition."""

    def start(self) -> None:
        """Announce the member, and watch the record."""
        self._coordinator.start(self)
        self._coordinator.announce(self._address)

    # What the coordination service reports

    def on_view(self, view: ClusterView) -> None:
        self.view = view
        self._decide()

    def on_connection(self, *, is_connected: bool) -> None:
        self.is_connected = is_connected

    def on_error(self, error: ReplicationError) -> None:
        self._fail(error)

    def tick(self) -> None:
        """To be called several times a second."""
        self._decide()

    def stopped_leading(self) -> None:
        """To be called by the owner when `MemberActions.stop_leading` is done."""
        if self.role is Role.STEPPING_DOWN:
            self.role = Role.WAITING
            self._decide()

    def renounce(self, incarnation: str) -> None:
        """Take a new incarnation, because the copy of this member is incomplete: the member is then
        not in sync until it has caught up. If it leads, it steps down."""
        self._identity = self._identity._replace(incarnation=incarnation)
        self._address = msgspec.structs.replace(self._address, incarnation=incarnation)
        if self.role is Role.LEADING:
            self._step_down()
        else:
            self._coordinator.announce(self._address)

    def lead_again(self) -> None:
        """Stop leading and, if no other member takes over, lead in a new epoch. The owner then
        opens the data path again."""
        if self.role is Role.LEADING:
            self._step_down()

    def has_successor(self) -> bool:
        """Whether another running member is in sync."""
        if self.view is None or self.view.record is None:
            return False
        record, alive = self.view.record, self.view.alive
        return any(
            each in alive and record.is_in_sync(each, alive[each].incarnation)
            for each in record.in_sync_members - {self._name}
        )

    # Decisions

    def _decide(self) -> None:
        view = self.view
        if view is None or self.role in (Role.FAILED, Role.STEPPING_DOWN):
            return
        if self.role is Role.LEADING:
            self._decide_as_leader(view)
        elif self._is_writing or self._now_ns() < self._retry_at_ns:
            pass
        elif self._has_own_entry(view):
            if view.record is None:
                self._create(view)
            elif self._belongs_to(view.record) and self._is_member(view.record, view.revision):
                self._decide_as_follower(view, view.record)

    def _decide_as_leader(self, view: ClusterView) -> None:
        record = view.record
        if record is None:
            self._fail(ReplicationError(f"the record of node {self._identity.node} was deleted"))
        elif (record.leader, record.epoch) == (self._name, self.epoch):
            self._actions.leader_view(view)
            if self._should_hand_over(view, record):
                self._log.info("REPLICATION: handing over to %s", record.preferred_leader)
                self._step_down()
        else:
            self._log.warning(
                "REPLICATION: %s leads in epoch %d; this member steps down",
                record.leader,
                record.epoch,
            )
            self._step_down()

    def _decide_as_follower(self, view: ClusterView, record: NodeRecord) -> None:
        # If damage was found after the claim, this member has a new incarnation: it must not lead.
        is_in_sync = record.is_in_sync(self._name, self._identity.incarnation)
        is_claimed = record.leader == self._name and record.epoch == self._claimed_epoch
        if is_claimed and is_in_sync:
            self._lead(view)
            return
        leader = view.alive.get(record.leader)
        is_other = record.leader != self._name  # An old view may still show that this one leads.
        if leader is not None and is_other and leader.leading_epoch == record.epoch:
            self._since.pop("leader is missing", None)
            self._follow(leader, record.epoch)
            return
        if self._may_claim(record, leader):
            self._claim(record, view.revision)

    def _may_claim(self, record: NodeRecord, leader: MemberAddress | None) -> bool:
        """Whether this member is in sync, and the leader has been missing long enough."""
        if record.epoch != self._missing_epoch:
            # Another leader is expected, and has not had its time yet.
            self._missing_epoch = record.epoch
            self._since.pop("leader is missing", None)
        missing_ns = self._ns_since("leader is missing")
        if not record.is_in_sync(self._name, self._identity.incarnation):
            if missing_ns >= 2 * self._identity.lease_ns and "told" not in self._since:
                self._since["told"] = self._now_ns()
                in_sync = ", ".join(sorted(record.in_sync_members))
                self._log.warning(
                    "REPLICATION: there is no leader, and this member is not in sync; waiting for "
                    "one of %s",
                    in_sync,
                )
            return False
        others = [each.member for each in record.in_sync if each.member != record.leader]
        if record.preferred_leader in others:
            others.remove(record.preferred_leader)
            others.insert(0, record.preferred_leader)
        rank = others.index(self._name) if self._name in others else len(others)
        delay_ns = rank * _CLAIM_DELAY_NS
        if (
            leader is not None
            and leader.member != self._name
            and leader.ended_epoch != record.epoch
        ):
            # The leader is running, and may be about to lead.
            delay_ns += self._identity.lease_ns
        is_others_turn = self._now_ns() < self._claim_not_before_ns and self.has_successor()
        return missing_ns >= delay_ns and not is_others_turn

    def _should_hand_over(self, view: ClusterView, record: NodeRecord) -> bool:
        preferred = record.preferred_leader
        return (
            preferred is not None
            and preferred != self._name
            and preferred in view.alive
            and record.is_in_sync(preferred, view.alive[preferred].incarnation)
        )

    def _has_own_entry(self, view: ClusterView) -> bool:
        """Whether the entry of this member in etcd is that of this process."""
        entry = view.alive.get(self._name)
        if entry is None:
            self._since.pop("entry of another process", None)
            return False
        if entry.session == self._address.session:
            self._since.pop("entry of another process", None)
            return True
        # A process that has crashed leaves an entry until its lease ends.
        if self._ns_since("entry of another process") > 3 * self._identity.lease_ns:
            self._fail(
                ReplicationError(
                    f"another process runs as member {self._name} of node {self._identity.node}, "
                    f"at {entry.broadcast_address}:{entry.tcp_port}"
                )
            )
        return False

    def _belongs_to(self, record: NodeRecord) -> bool:
        """Whether the data path belongs to this node, or is empty. Otherwise calls
        `MemberActions.fail`."""
        if self._node_uuid == record.node_uuid:
            return True
        node = self._identity.node
        if not self._identity.has_data:
            self._join(record.node_uuid)
            return True
        if self._node_uuid:
            self._fail(ReplicationError(f"the data path belongs to another node than {node}"))
        else:
            self._fail(
                ReplicationError(
                    f"node {node} exists already, and the data path has topics of its own: start "
                    "with an empty data path"
                )
            )
        return False

    def _is_member(self, record: NodeRecord, revision: int) -> bool:
        if self._name in record.members:
            return True
        self._write(add_member(record, self._name), revision)
        return False

    # Actions

    def _create(self, view: ClusterView) -> None:
        if self._node_uuid and self._identity.has_data:
            self._fail(
                ReplicationError(
                    f"etcd has no record of node {self._identity.node}, but the data path belongs "
                    "to it: check --etcd and --cluster"
                )
            )
            return
        record = create_record(self._new_uuid(), self._name, self._identity.incarnation)
        self._join(record.node_uuid)
        self._claimed_epoch = record.epoch
        self._write(record, view.revision)

    def _join(self, node_uuid: str) -> None:
        self._node_uuid = node_uuid
        self._actions.join(node_uuid)

    def _claim(self, record: NodeRecord, revision: int) -> None:
        self._stop_following()
        self.role = Role.CLAIMING
        claimed = claim_leadership(record, self._name, self._identity.incarnation)
        self._claimed_epoch = claimed.epoch
        self._log.info("REPLICATION: claiming the leadership in epoch %d", claimed.epoch)
        self._write(claimed, revision)

    def _lead(self, view: ClusterView) -> None:
        assert view.record is not None
        self._stop_following()
        self._since.clear()
        self._claimed_epoch = 0  # A later start as leader needs an epoch of its own.
        self.role, self.epoch = Role.LEADING, view.record.epoch
        self._announce(leading_epoch=self.epoch, ended_epoch=0)
        self._log.info("REPLICATION: leading in epoch %d", self.epoch)
        self._actions.lead(view)

    def _step_down(self) -> None:
        self._announce(leading_epoch=0, ended_epoch=self.epoch)
        self.role, self.epoch = Role.STEPPING_DOWN, 0
        # Give the others time to claim the leadership.
        self._claim_not_before_ns = self._now_ns() + 2 * self._identity.lease_ns
        self._actions.stop_leading()

    def _follow(self, leader: MemberAddress, epoch: int) -> None:
        if self._followed != (leader.session, epoch):
            self._followed = leader.session, epoch
            self.role = Role.FOLLOWING
            self._actions.follow(leader, epoch)

    def _stop_following(self) -> None:
        if self._followed is not None:
            self._followed = None
            self._actions.stop_following()

    def _announce(self, *, leading_epoch: int, ended_epoch: int) -> None:
        self._address = msgspec.structs.replace(
            self._address, leading_epoch=leading_epoch, ended_epoch=ended_epoch
        )
        self._coordinator.announce(self._address)

    def _fail(self, error: ReplicationError) -> None:
        if self.role is not Role.FAILED:
            self._stop_following()
            self.role = Role.FAILED
            self._actions.fail(error)

    def _write(self, record: NodeRecord, revision: int) -> None:
        self._is_writing = True
        self._coordinator.write(record, revision, self._on_written)

    def _on_written(self, result: WriteResult) -> None:
        self._is_writing = False
        if result is WriteResult.UNKNOWN:
            # A later view shows whether it was stored.
            self._retry_at_ns = self._now_ns() + _RETRY_NS
        if self.role is Role.CLAIMING:
            self.role = Role.WAITING

    def _ns_since(self, condition: str) -> int:
        """Nanoseconds since this condition was first seen."""
        now_ns = self._now_ns()
        return now_ns - self._since.setdefault(condition, now_ns)
