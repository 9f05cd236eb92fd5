"""The contract of `Coordinator`, for etcd and for the version in memory."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
import uvloop
from tests.replication.coordination_services import (
    EtcdService,
    MemoryService,
    Service,
    assert_in_order,
    make_address,
    make_record,
)

from penstock.replication.coordination import ClusterView, WriteResult
from penstock.replication.node_record import NodeRecord, add_member
from penstock.testing.etcd import EtcdProcess, has_etcd, run_etcd

Scene = Callable[[Service], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with run_etcd() as etcd:
        yield etcd


@pytest.fixture(
    params=[
        "memory",
        pytest.param("etcd", marks=pytest.mark.skipif(not has_etcd(), reason="needs etcd")),
    ]
)
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scene in an event loop, and closes all coordinators."""

    def make_service() -> Service:
        if request.param == "memory":
            return MemoryService()
        etcd: EtcdProcess = request.getfixturevalue("etcd")
        return EtcdService(etcd.url)

    def play(scene: Scene) -> None:
        async def main() -> None:
            service = make_service()
            try:
                await scene(service)
            finally:
                await service.close_all()

        uvloop.run(main())

    return play


def test_the_first_view_of_a_new_node_is_empty(play: Play) -> None:
    async def scene(service: Service) -> None:
        _, listener = await service.start("a")

        assert [ClusterView(None, 0, {})] == listener.views
        assert [True] == listener.connections

    play(scene)


def test_the_first_view_has_the_record_and_the_entries(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, seen = await service.start("a")
        first.announce(make_address("a"))
        await service.write(first, make_record(), 0)
        await service.until(lambda: seen.alive and seen.last.record, "the own view")

        _, listener = await service.start("b")

        assert (make_record(), {"a": make_address("a")}) == (
            listener.views[0].record,
            listener.views[0].alive,
        )
        assert seen.last == listener.views[0]

    play(scene)


def test_members_see_the_entries_of_each_other(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, first_seen = await service.start("a")
        second, second_seen = await service.start("b")
        first.announce(make_address("a"))
        second.announce(make_address("b"))

        await service.until(
            lambda: {"a", "b"} == first_seen.alive == second_seen.alive,
            "both entries in both views",
        )
        assert make_address("b") == first_seen.last.alive["b"]

    play(scene)


def test_a_write_is_stored_if_the_revision_is_the_expected_one(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, seen = await service.start("a")
        second, _ = await service.start("b")
        record = make_record()
        assert WriteResult.STORED == await service.write(first, record, 0)
        await service.until(lambda: record == seen.last.record, "the record")
        assert WriteResult.CONFLICT == await service.write(second, record, 0)

        revision, changed = seen.last.revision, add_member(record, "b")
        assert WriteResult.STORED == await service.write(second, changed, revision)
        await service.until(lambda: changed == seen.last.record, "the changed record")
        assert seen.last.revision > revision
        assert WriteResult.CONFLICT == await service.write(first, record, revision)
        assert WriteResult.CONFLICT == await service.write(first, record, revision + 1000)

    play(scene)


def test_of_two_writes_at_the_same_time_one_is_stored(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, _ = await service.start("a")
        second, _ = await service.start("b")
        results: list[WriteResult] = []
        first.write(make_record("a"), 0, results.append)
        second.write(make_record("b"), 0, results.append)
        await service.until(lambda: len(results) == 2, "both results")

        assert {WriteResult.STORED, WriteResult.CONFLICT} == set(results)

    play(scene)


def test_a_watcher_sees_all_writes_in_order(play: Play) -> None:
    async def scene(service: Service) -> None:
        writer, own = await service.start("a")
        _, seen = await service.start("b")

        async def write(record: NodeRecord) -> None:
            assert WriteResult.STORED == await service.write(writer, record, own.last.revision)
            await service.until(lambda: record == own.last.record, "the own write")

        for epoch in range(1, 21):
            await write(msgspec.structs.replace(make_record(), epoch=epoch))

        await service.until(lambda: seen.last == own.last, "the last write")
        assert_in_order(seen.views)
        assert list(range(1, 21)) == [view.record.epoch for view in seen.views if view.record]

    play(scene)


def test_an_entry_disappears_when_its_member_closes(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, _ = await service.start("a")
        _, seen = await service.start("b")
        first.announce(make_address("a"))
        await service.until(lambda: {"a"} == seen.alive, "the entry")
        await service.close(first)

        await service.until(lambda: not seen.alive, "the end of the entry")

    play(scene)


def test_a_second_announcement_replaces_the_entry(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, _ = await service.start("a")
        _, seen = await service.start("b")
        first.announce(make_address("a"))
        await service.until(lambda: {"a"} == seen.alive, "the entry")
        leaving = make_address("a", leading_epoch=7)
        first.announce(leaving)
        await service.until(lambda: leaving == seen.last.alive["a"], "the changed entry")
        await service.close(first)
        await service.until(lambda: not seen.alive, "the end of the entry")

    play(scene)


def test_the_last_of_several_announcements_is_stored(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, seen = await service.start("a")
        leaving = make_address("a", leading_epoch=7)
        first.announce(make_address("a"))
        first.announce(leaving)

        await service.until(lambda: {"a": leaving} == seen.last.alive, "the last entry")

    play(scene)


def test_a_second_process_of_a_member_waits_for_the_entry(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, _ = await service.start("a")
        second, seen = await service.start("a")
        first.announce(make_address("a", "first"))
        await service.until(lambda: seen.alive, "the first entry")
        second.announce(make_address("a", "second"))
        await service.write(second, make_record(), 0)
        await service.until(lambda: seen.last.record, "the record")
        assert make_address("a", "first") == seen.last.alive["a"]

        await service.close(first)
        await service.until(
            lambda: seen.last.alive == {"a": make_address("a", "second")}, "the second entry"
        )

    play(scene)


def test_nothing_is_called_after_close(play: Play) -> None:
    async def scene(service: Service) -> None:
        first, seen = await service.start("a")
        second, other = await service.start("b")
        results: list[WriteResult] = []
        first.write(make_record(), 0, results.append)
        await service.close(first)
        count = len(seen.views)
        second.announce(make_address("b"))
        await service.until(lambda: {"b"} == other.alive, "the entry")

        assert ([], count, [True]) == (results, len(seen.views), seen.connections)

    play(scene)
