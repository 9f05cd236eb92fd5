"""Members decide who leads, with a coordination service in memory."""

import pytest

from penstock.common.clock import SECOND_NS
from penstock.common.errors import ReplicationError
from penstock.common.logs import Logger, LogLevel
from penstock.replication.coordination import ClusterView
from penstock.replication.member import Member, MemberIdentity, Role
from penstock.replication.node_record import (
    MemberAddress,
    NodeRecord,
    add_in_sync,
    prefer_leader,
    remove_in_sync,
)
from penstock.testing.clock import ManualClock
from penstock.testing.coordination import MemoryCoordination, StepKind

LEASE_NS = 5 * SECOND_NS


class MemberBench:
    """One member, and what it was told to do."""

    def __init__(
        self,
        service: MemoryCoordination,
        name: str,
        clock: ManualClock,
        *,
        session: str = "1",
        incarnation: str = "1",
        node_uuid: str = "",
        has_data: bool = False,
    ) -> None:
        self.actions: list[str] = []
        self.error: ReplicationError | None = None
        self.coordinator = service.coordinator(name)
        self.joined = node_uuid
        address = MemberAddress(
            member=name,
            incarnation=incarnation,
            session=f"{name}-{session}",
            broadcast_address=name,
            tcp_port=4150,
            http_port=4151,
            version="1",
        )
        identity = MemberIdentity(
            cluster="shop",
            node="n",
            member=name,
            incarnation=incarnation,
            address=address,
            node_uuid=node_uuid,
            has_data=has_data,
            lease_ns=LEASE_NS,
        )
        self.member = Member(
            identity,
            self.coordinator,
            self,
            clock,
            Logger("", LogLevel.FATAL),
            lambda: f"uuid-of-{name}",
        )
        self.member.start()

    def join(self, node_uuid: str) -> None:
        self.joined = node_uuid

    def lead(self, view: ClusterView) -> None:
        assert view.record is not None
        self.actions.append(f"lead {view.record.epoch}")

    def leader_view(self, view: ClusterView) -> None:
        pass

    def stop_leading(self) -> None:
        self.actions.append("stop leading")

    def follow(self, leader: MemberAddress, epoch: int) -> None:
        self.actions.append(f"follow {leader.member} {epoch}")

    def stop_following(self) -> None:
        self.actions.append("stop following")

    def fail(self, error: ReplicationError) -> None:
        self.error = error


class Cluster:
    """Members on one coordination service."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.service = MemoryCoordination()
        self.members: dict[str, MemberBench] = {}

    def start(self, name: str, **identity: object) -> MemberBench:
        bench = MemberBench(self.service, name, self.clock, **identity)  # type: ignore[arg-type]
        self.members[name] = bench
        return bench

    def run(self, seconds: float = 1.0) -> None:
        """Deliver everything, and let time pass."""
        for _ in range(max(int(seconds * 10), 1)):
            self.service.run_all()
            for bench in self.members.values():
                bench.member.tick()
            self.service.run_all()
            self.clock.advance(SECOND_NS // 10)

    def change(self, record: NodeRecord) -> None:
        assert self.service.swap(record, self.service.view.revision)
        for bench in self.members.values():
            self.service.resend_view(bench.coordinator)

    @property
    def record(self) -> NodeRecord:
        record = self.service.view.record
        assert record is not None
        return record

    def kill(self, name: str) -> None:
        self.members.pop(name).coordinator.crash()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def trio(cluster: Cluster) -> Cluster:
    """a leads; b and c follow and are in sync."""
    cluster.start("a")
    cluster.run()
    cluster.start("b")
    cluster.start("c")
    cluster.run()
    cluster.change(add_in_sync(add_in_sync(cluster.record, "b", "1"), "c", "1"))
    cluster.run()
    return cluster


def test_first_member_leads(cluster: Cluster) -> None:
    bench = cluster.start("a")
    cluster.run()

    assert (["lead 1"], Role.LEADING, "uuid-of-a") == (
        bench.actions,
        bench.member.role,
        bench.joined,
    )


def test_others_follow(trio: Cluster) -> None:
    assert ["follow a 1"] == trio.members["b"].actions == trio.members["c"].actions
    assert ("a", "b", "c") == trio.record.members
    assert "uuid-of-a" == trio.members["c"].joined


def test_one_of_several_that_start_together_leads(cluster: Cluster) -> None:
    benches = [cluster.start(name) for name in "abc"]
    cluster.run(20)

    assert ["lead 1"] == [
        action for bench in benches for action in bench.actions if "lead" in action
    ]
    assert len({bench.joined for bench in benches}) == 1
    assert [None] * 3 == [bench.error for bench in benches]


def test_follower_takes_over_when_the_entry_of_the_leader_has_gone(trio: Cluster) -> None:
    trio.kill("a")
    trio.run()
    assert 1 == trio.record.epoch

    trio.service.expire("a")
    trio.run(5)
    assert (2, "b") == (trio.record.epoch, trio.record.leader)
    assert ["follow a 1", "stop following", "lead 2"] == trio.members["b"].actions
    assert ["follow a 1", "follow b 2"] == trio.members["c"].actions


def test_member_that_is_not_in_sync_does_not_take_over(trio: Cluster) -> None:
    trio.change(remove_in_sync(trio.record, frozenset({"b"})))
    trio.kill("a")
    trio.service.expire("a")
    trio.run(30)

    assert "c" == trio.record.leader


def test_nobody_in_sync_is_left(trio: Cluster) -> None:
    trio.change(remove_in_sync(trio.record, frozenset({"b", "c"})))
    trio.kill("a")
    trio.service.expire("a")
    trio.run(60)

    assert (1, "a") == (trio.record.epoch, trio.record.leader)


def test_restarted_leader_has_a_new_epoch(cluster: Cluster) -> None:
    cluster.start("a")
    cluster.run()
    cluster.kill("a")
    bench = cluster.start("a", session="2", node_uuid="uuid-of-a", has_data=True)
    cluster.run()
    assert [] == bench.actions

    cluster.service.expire("a")
    cluster.run()
    assert ["lead 2"] == bench.actions


def test_restarted_leader_with_another_incarnation_does_not_lead(trio: Cluster) -> None:
    trio.kill("a")
    trio.service.expire("a")
    bench = trio.start("a", session="2", incarnation="2", node_uuid="uuid-of-a", has_data=True)
    trio.run(30)

    assert trio.record.leader in "bc"
    assert bench.actions == [f"follow {trio.record.leader} 2"]


def test_replaced_leader_steps_down_and_follows(trio: Cluster) -> None:
    trio.members["a"].coordinator.set_connected(is_connected=False)
    trio.service.expire("a")
    trio.run(5)
    assert (["lead 1"], "b") == (trio.members["a"].actions, trio.record.leader)

    trio.members["a"].coordinator.set_connected(is_connected=True)
    trio.run()
    bench = trio.members["a"]
    assert ["lead 1", "stop leading"] == bench.actions
    bench.member.stopped_leading()
    trio.run()
    assert ["lead 1", "stop leading", "follow b 2"] == bench.actions


def test_leadership_moves_to_the_preferred_member(trio: Cluster) -> None:
    trio.change(prefer_leader(trio.record, "c"))
    trio.run()
    assert "stop leading" == trio.members["a"].actions[-1]

    trio.members["a"].member.stopped_leading()
    trio.run(5)
    assert "c" == trio.record.leader
    assert "lead 2" == trio.members["c"].actions[-1]
    assert "follow c 2" == trio.members["a"].actions[-1]


def test_leadership_stays_if_the_preferred_member_has_another_incarnation(trio: Cluster) -> None:
    """The record still lists the earlier incarnation, which could take over."""
    trio.kill("c")
    trio.service.expire("c")
    trio.start("c", session="2", incarnation="2", node_uuid=trio.record.node_uuid)
    trio.run()
    trio.change(prefer_leader(trio.record, "c"))
    trio.run(5)

    assert ["lead 1"] == trio.members["a"].actions


def test_new_leader_gets_time_to_start(trio: Cluster) -> None:
    """c has waited for a leader for a long time when b takes over."""

    def deliver(member: str) -> None:
        while steps := [each for each in trio.service.runnable() if each.member == member]:
            steps[0].run()
            if steps[0].kind is StepKind.WRITE:
                break  # The member does not know yet that its claim was stored.

    trio.service.expire("a")
    trio.kill("a")
    deliver("c")
    trio.clock.advance(2 * LEASE_NS)
    deliver("b")
    assert ("b", 2) == (trio.record.leader, trio.record.epoch)
    deliver("c")
    trio.run()

    assert ("b", 2) == (trio.record.leader, trio.record.epoch)
    assert "lead 2" == trio.members["b"].actions[-1]


def test_leader_never_leads_an_epoch_twice(trio: Cluster) -> None:
    """The preferred member dies before it takes over."""
    trio.kill("c")
    trio.kill("b")
    trio.change(prefer_leader(trio.record, "c"))
    trio.run()
    trio.service.expire("b")
    trio.service.expire("c")
    trio.members["a"].member.stopped_leading()
    trio.run(30)

    assert ["lead 1", "stop leading", "lead 2"] == trio.members["a"].actions


def test_claim_whose_answer_is_lost_is_found_in_the_next_view(trio: Cluster) -> None:
    trio.kill("a")
    trio.service.expire("a")
    trio.service.run_all()
    bench = trio.members["b"]
    for _ in range(40):
        bench.member.tick()
        for step in trio.service.runnable():
            if step.member == "b" and step.can_time_out:
                step.time_out()
        trio.service.run_all()
        trio.clock.advance(SECOND_NS // 10)
    trio.run(5)

    leads = [action for action in bench.actions if action.startswith("lead")]
    assert f"lead {trio.record.epoch}" == leads[-1]
    assert 1 == len(leads)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"has_data": True}, "node n exists already, and the data path has topics of its own"),
        (
            {"has_data": True, "node_uuid": "other"},
            "the data path belongs to another node than n",
        ),
    ],
)
def test_foreign_data_path_is_refused(
    trio: Cluster, identity: dict[str, object], message: str
) -> None:
    before = trio.record
    bench = trio.start("d", **identity)
    trio.run()

    assert bench.error is not None
    assert message in str(bench.error)
    assert [] == bench.actions
    assert before == trio.record


def test_data_path_whose_record_is_missing_is_refused(cluster: Cluster) -> None:
    bench = cluster.start("a", node_uuid="uuid", has_data=True)
    cluster.run()

    assert "etcd has no record of node n, but the data path belongs to it" in str(bench.error)
    assert None is cluster.service.view.record


def test_second_process_with_the_same_name_gives_up(trio: Cluster) -> None:
    first = trio.members["b"]
    second = MemberBench(trio.service, "b", trio.clock, session="2")
    trio.members["second b"] = second
    trio.run(30)

    assert "another process runs as member b of node n, at b:4150" == str(second.error)
    assert [] == second.actions
    assert Role.FOLLOWING is first.member.role


def test_data_path_with_topics_becomes_the_first_copy(cluster: Cluster) -> None:
    bench = cluster.start("a", has_data=True)
    cluster.run()

    assert ["lead 1"] == bench.actions


def test_deleted_record_stops_the_leader(cluster: Cluster) -> None:
    bench = cluster.start("a")
    cluster.run()
    bench.member.on_view(ClusterView(None, 0, {}))

    assert "the record of node n was deleted" == str(bench.error)


def test_member_with_an_incomplete_copy_hands_over_and_is_not_in_sync(trio: Cluster) -> None:
    bench = trio.members["a"]
    assert bench.member.has_successor()
    bench.member.renounce("2")
    bench.member.stopped_leading()
    trio.run(2)

    assert (2, "b") == (trio.record.epoch, trio.record.leader)
    assert ["lead 1", "stop leading", "follow b 2"] == bench.actions
    trio.kill("b")
    trio.kill("c")
    trio.service.expire("b")
    trio.service.expire("c")
    trio.run(30)
    assert "b" == trio.record.leader


def test_member_that_finds_damage_while_it_claims_does_not_lead(trio: Cluster) -> None:
    trio.kill("a")
    trio.service.expire("a")
    for step in trio.service.runnable():
        if step.kind is StepKind.VIEW:
            step.run()
    assert Role.CLAIMING is trio.members["b"].member.role
    trio.members["b"].member.renounce("2")
    trio.run(3 * LEASE_NS / SECOND_NS)

    assert not any(each.startswith("lead") for each in trio.members["b"].actions)
    assert ("c", "lead 3") == (trio.record.leader, trio.members["c"].actions[-1])


def test_member_that_has_handed_over_claims_again_if_no_successor_is_left(trio: Cluster) -> None:
    bench = trio.members["a"]
    trio.change(prefer_leader(remove_in_sync(trio.record, frozenset("b")), "c"))
    trio.run()
    bench.member.stopped_leading()
    trio.run()
    assert ["lead 1", "stop leading", "follow c 2"] == bench.actions
    trio.kill("c")
    trio.service.expire("c")
    trio.run()

    assert "lead 3" == bench.actions[-1]


def test_other_incarnation_is_no_successor(trio: Cluster) -> None:
    trio.change(remove_in_sync(trio.record, frozenset("b")))
    trio.kill("c")
    trio.service.expire("c")
    trio.start("c", session="2", incarnation="2", node_uuid=trio.record.node_uuid)
    trio.run()

    assert "c" in trio.record.in_sync_members
    assert not trio.members["a"].member.has_successor()
