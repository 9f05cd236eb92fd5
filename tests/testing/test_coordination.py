"""The coordination service in memory: what a test can delay, lose and break. The contract that it
shares with etcd is tested in tests/replication/test_coordination.py."""

import asyncio

import pytest
from tests.replication.coordination_services import (
    RecordingListener,
    make_address,
    make_record,
)

from penstock.replication.coordination import WriteResult
from penstock.testing.coordination import (
    MemoryCoordination,
    MemoryCoordinator,
    PendingStep,
    StepKind,
)


class Member:
    """A started coordinator, with what it has received."""

    def __init__(self, service: MemoryCoordination, name: str) -> None:
        self.seen = RecordingListener()
        self.results: list[WriteResult] = []
        self.coordinator: MemoryCoordinator = service.coordinator(name)
        self.coordinator.start(self.seen)
        service.run_all()

    def write(self, expected_revision: int = 0) -> None:
        record = make_record(self.coordinator.member)
        self.coordinator.write(record, expected_revision, self.results.append)


@pytest.fixture
def service() -> MemoryCoordination:
    return MemoryCoordination()


def find(service: MemoryCoordination, kind: StepKind, member: str = "a") -> PendingStep:
    """The only step of this kind."""
    (found,) = (each for each in service.pending if (each.kind, each.member) == (kind, member))
    return found


class TestWrites:
    def test_a_write_waits_for_its_step(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.write()
        assert (None, []) == (service.record, member.results)

        find(service, StepKind.WRITE).run()
        assert (make_record(), []) == (service.record, member.results)

        find(service, StepKind.RESULT).run()
        assert [WriteResult.STORED] == member.results

    def test_a_lost_write_is_never_executed(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.write()
        find(service, StepKind.WRITE).drop()
        service.run_all()

        assert (None, [WriteResult.UNKNOWN]) == (service.record, member.results)

    def test_a_lost_answer_does_not_undo_the_write(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.write()
        find(service, StepKind.WRITE).run()
        find(service, StepKind.RESULT).drop()
        service.run_all()

        assert (make_record(), [WriteResult.UNKNOWN]) == (service.record, member.results)

    def test_a_write_may_be_executed_after_its_result_is_unknown(
        self, service: MemoryCoordination
    ) -> None:
        member = Member(service, "a")
        member.write()
        step = find(service, StepKind.WRITE)
        step.time_out()
        find(service, StepKind.RESULT).run()
        assert (None, [WriteResult.UNKNOWN]) == (service.record, member.results)
        assert not step.can_time_out

        step.run()
        service.run_all()
        assert (make_record(), [WriteResult.UNKNOWN]) == (service.record, member.results)

    def test_a_late_write_is_void_after_another_one(self, service: MemoryCoordination) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.write()
        late = find(service, StepKind.WRITE)
        late.time_out()
        second.write()
        find(service, StepKind.WRITE, "b").run()
        late.run()
        service.run_all()

        assert make_record("b") == service.record
        assert ([WriteResult.UNKNOWN], [WriteResult.STORED]) == (first.results, second.results)

    def test_writes_can_overtake_each_other(self, service: MemoryCoordination) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.write()
        second.write()
        find(service, StepKind.WRITE, "b").run()
        service.run_all()

        assert make_record("b") == service.record
        assert ([WriteResult.CONFLICT], [WriteResult.STORED]) == (first.results, second.results)

    def test_a_write_of_a_stopped_member_may_still_be_executed(
        self, service: MemoryCoordination
    ) -> None:
        member = Member(service, "a")
        member.write()
        member.coordinator.crash()
        service.run_all()

        assert (make_record(), []) == (service.record, member.results)


class TestViews:
    def test_a_view_is_as_old_as_its_step(self, service: MemoryCoordination) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.write()
        find(service, StepKind.WRITE).run()
        delayed = find(service, StepKind.VIEW, "b")
        first.write(service.revision)
        find(service, StepKind.WRITE).run()
        delayed.run()

        assert (1, 2) == (second.seen.last.revision, service.revision)

    def test_views_stay_in_order(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        service.expire("a")
        member.write()
        find(service, StepKind.WRITE).run()
        member.coordinator.set_connected(is_connected=False)
        view, connection = find(service, StepKind.VIEW), find(service, StepKind.CONNECTION)

        assert [True, False] == [view.is_runnable, connection.is_runnable]
        assert connection not in service.runnable()
        with pytest.raises(AssertionError):
            connection.run()
        view.run()
        assert connection in service.runnable()

    def test_a_lost_view_can_be_sent_again(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.write()
        find(service, StepKind.WRITE).run()
        find(service, StepKind.VIEW).drop()
        service.run_all()
        assert member.seen.last.record is None

        service.resend_view(member.coordinator)
        service.run_all()
        assert make_record() == member.seen.last.record

    def test_the_connection_cannot_be_dropped(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.coordinator.set_connected(is_connected=False)
        step = find(service, StepKind.CONNECTION)

        assert not step.is_droppable
        with pytest.raises(AssertionError):
            step.drop()


class TestConnections:
    def test_a_disconnected_member_gets_no_view(self, service: MemoryCoordination) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        second.coordinator.set_connected(is_connected=False)
        first.write()
        service.run_all()
        assert [True, False] == second.seen.connections
        assert second.seen.last.record is None

        second.coordinator.set_connected(is_connected=True)
        service.run_all()
        assert [True, False, True] == second.seen.connections
        assert make_record() == second.seen.last.record

    def test_a_write_of_a_disconnected_member_is_unknown(self, service: MemoryCoordination) -> None:
        member = Member(service, "a")
        member.coordinator.set_connected(is_connected=False)
        member.write()
        service.run_all()

        assert (None, [WriteResult.UNKNOWN]) == (service.record, member.results)

    def test_a_write_in_flight_survives_the_loss_of_the_connection(
        self, service: MemoryCoordination
    ) -> None:
        member = Member(service, "a")
        member.write()
        member.coordinator.set_connected(is_connected=False)
        find(service, StepKind.WRITE).run()
        find(service, StepKind.RESULT).drop()
        service.run_all()

        assert (make_record(), [WriteResult.UNKNOWN]) == (service.record, member.results)


class TestEntries:
    def test_an_entry_of_a_living_member_expires_and_returns(
        self, service: MemoryCoordination
    ) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.coordinator.announce(make_address("a"))
        service.run_all()
        service.expire("a")
        find(service, StepKind.VIEW, "b").run()
        assert set() == second.seen.alive

        service.run_all()
        assert {"a"} == second.seen.alive

    def test_an_entry_of_a_disconnected_member_returns_with_the_connection(
        self, service: MemoryCoordination
    ) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.coordinator.announce(make_address("a"))
        service.run_all()
        first.coordinator.set_connected(is_connected=False)
        service.expire("a")
        service.run_all()
        assert set() == second.seen.alive

        first.coordinator.set_connected(is_connected=True)
        service.run_all()
        assert {"a"} == second.seen.alive

    def test_an_entry_of_a_crashed_member_stays_until_it_expires(
        self, service: MemoryCoordination
    ) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.coordinator.announce(make_address("a", "first"))
        service.run_all()
        first.coordinator.crash()
        again = Member(service, "a")
        again.coordinator.announce(make_address("a", "again"))
        service.run_all()
        assert make_address("a", "first") == second.seen.last.alive["a"]

        service.expire("a")
        service.run_all()
        assert make_address("a", "again") == second.seen.last.alive["a"]

    def test_a_disconnected_member_cannot_delete_its_entry(
        self, service: MemoryCoordination
    ) -> None:
        first, second = Member(service, "a"), Member(service, "b")
        first.coordinator.announce(make_address("a"))
        service.run_all()
        first.coordinator.set_connected(is_connected=False)
        asyncio.run(first.coordinator.close())
        service.run_all()

        assert {"a"} == second.seen.alive
