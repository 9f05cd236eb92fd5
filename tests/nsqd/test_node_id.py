"""The node id: chosen at random, stored, and changed if another nsqd has the same one."""

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.nsqd import scripted_lookupd as script
from tests.nsqd.scripted_lookupd import scripted_lookupd

from penstock.common.logs import Logger
from penstock.common.node_id import NODE_IDS
from penstock.nsqd.lookup_peer import LookupdInfo
from penstock.nsqd.node_id import CHANGES_MAX, NodeId
from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import Event, IdentifyPeer, Register
from penstock.storage import DataPath, LogSettings, RealFiles
from penstock.storage.data_dir import read_format_file, write_format_file
from penstock.testing import FaultyFiles, MemoryFiles
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until

_NUMBERS = count()


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd("--broadcast-address=127.0.0.1") as process:
        yield process


def address_flag(nsqlookupd: NsqlookupdProcess) -> str:
    return f"--lookupd-tcp-address={nsqlookupd.tcp_address}"


def stored_id(data_path: Path) -> int:
    found = re.search(r"^node (\d+)$", format_file(data_path).read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def format_file(data_path: Path) -> Path:
    return data_path / "penstock.format"


@contextmanager
def run_with_stored_id(data_path: Path, node_id: int, *flags: str) -> Iterator[NsqdProcess]:
    """Runs nsqd with a data path that contains this node id."""
    with run_nsqd(data_path=data_path) as nsqd:
        nsqd.terminate()
    files = RealFiles()
    stored = read_format_file(files, str(data_path))
    assert stored is not None
    write_format_file(files, str(data_path), stored._replace(node_id=node_id))
    with run_nsqd("--broadcast-address=127.0.0.1", *flags, data_path=data_path) as nsqd:
        yield nsqd


def id_in_use(nsqd: NsqdProcess) -> int:
    """The node id of a new message; all parts of nsqd must show the same one."""
    topic = f"t{next(_NUMBERS)}"
    consumer = nsqd.consumer(topic, "c")
    nsqd.publish(topic, b"x")
    node_id = int(consumer.message().id, 16) >> 54
    consumer.close()
    assert {node_id} == {
        shown_id(nsqd),
        nsqd.http("GET", "/config/id").json(),
        nsqd.http("GET", f"/topic/log?topic={topic}").json()["node_id"],
    }
    return node_id


def shown_id(nsqd: NsqdProcess) -> int:
    shown: int = nsqd.http("GET", "/info").json()["node_id"]
    return shown


def registered_ids(nsqlookupd: NsqlookupdProcess) -> list[int]:
    return sorted(node["node_id"] for node in nsqlookupd.http("GET", "/nodes").json()["producers"])


def port_of(nsqd: NsqdProcess) -> int:
    return int(nsqd.http_address.rpartition(":")[2])


class TestStored:
    def test_two_nsqds_on_one_host_have_different_ids(self, nsqlookupd: NsqlookupdProcess) -> None:
        flag = address_flag(nsqlookupd)
        with run_nsqd(flag) as one, run_nsqd(flag) as other:
            wait_until(lambda: len(set(registered_ids(nsqlookupd))) == 2, "two node ids")

            assert registered_ids(nsqlookupd) == sorted([id_in_use(one), id_in_use(other)])
            assert id_in_use(one) == stored_id(one.data_path)
            assert id_in_use(other) == stored_id(other.data_path)

    def test_survives_a_restart_and_kill_9(self) -> None:
        with run_nsqd() as nsqd:
            first = id_in_use(nsqd)
            nsqd.restart()
            second = id_in_use(nsqd)
            nsqd.kill()
            nsqd.start()

            assert first == second == id_in_use(nsqd) == stored_id(nsqd.data_path)
            assert f"ID: {first}" in nsqd.log

    def test_option_overrides_it_and_is_not_stored(self, tmp_path: Path) -> None:
        with run_with_stored_id(tmp_path, 7, "--node-id=900") as nsqd:
            assert 900 == id_in_use(nsqd)
            assert 7 == stored_id(nsqd.data_path)
            assert "ID: 900" in nsqd.log
        with run_nsqd(data_path=tmp_path) as nsqd:
            assert 7 == id_in_use(nsqd)

    def test_each_shard_has_its_own(self, nsqlookupd: NsqlookupdProcess) -> None:
        with run_nsqd("--shards=2", address_flag(nsqlookupd)) as nsqd:
            wait_until(lambda: len(set(registered_ids(nsqlookupd))) == 2, "two node ids")
            folders = nsqd.data_path, nsqd.data_path / "shard-1"

            assert registered_ids(nsqlookupd) == sorted(map(stored_id, folders))


class TestCollision:
    def test_second_nsqd_changes_its_id(
        self, nsqlookupd: NsqlookupdProcess, tmp_path: Path
    ) -> None:
        flag = address_flag(nsqlookupd)
        with run_nsqd(flag, "--broadcast-address=127.0.0.1") as one:
            first = id_in_use(one)
            wait_until(lambda: [first] == registered_ids(nsqlookupd), "the first nsqd")
            with run_with_stored_id(tmp_path, first, flag) as other:
                wait_until(lambda: len(set(registered_ids(nsqlookupd))) == 2, "two node ids")
                second = id_in_use(other)

                assert sorted([first, second]) == registered_ids(nsqlookupd)
                assert first == id_in_use(one) == stored_id(one.data_path)
                assert second == stored_id(other.data_path)
                assert (
                    f"node id {first} is also used by 127.0.0.1:{port_of(one)}; changed to {second}"
                ) in other.log
                other.kill()
                other.start()
                assert second == id_in_use(other)
                assert "also used" not in other.log

    def test_topics_are_registered_after_the_change(
        self, nsqlookupd: NsqlookupdProcess, tmp_path: Path
    ) -> None:
        with run_nsqd(data_path=tmp_path) as nsqd:
            nsqd.publish("orders", b"x")
        nsqlookupd.node("other", node_id=7)
        with run_with_stored_id(tmp_path, 7, address_flag(nsqlookupd)) as nsqd:
            wait_until(lambda: ["127.0.0.1"] == nsqlookupd.found("orders"), "the topic")

            assert 7 != id_in_use(nsqd)
            consumer = nsqd.consumer("orders", "c")
            assert b"x" == consumer.message().body

    def test_reported_by_one_of_two_nsqlookupds(
        self, nsqlookupd: NsqlookupdProcess, tmp_path: Path
    ) -> None:
        with run_nsqlookupd() as second:
            second.node("other", node_id=7)
            flags = address_flag(nsqlookupd), address_flag(second)
            with run_with_stored_id(tmp_path, 7, *flags) as nsqd:
                wait_until(lambda: 7 != shown_id(nsqd), "another node id")
                new = id_in_use(nsqd)
                wait_until(lambda: [new] == registered_ids(nsqlookupd), "the first nsqlookupd")
                wait_until(lambda: sorted([7, new]) == registered_ids(second), "the second")

    def test_of_nsqds_that_register_at_the_same_moment(self, tmp_path: Path) -> None:
        """Each may be the second one at one of the nsqlookupds."""
        with ExitStack() as stack:
            lookupds = [stack.enter_context(run_nsqlookupd()) for _ in range(2)]
            flags = [address_flag(each) for each in lookupds]
            for each in lookupds:
                each.kill()
            nsqds = []
            for name in "abc":
                (tmp_path / name).mkdir()
                node = run_with_stored_id(tmp_path / name, 7, *flags)
                nsqds.append(stack.enter_context(node))
            for each in lookupds:
                each.start()
            wait_until(
                lambda: all(3 == len(set(registered_ids(each))) for each in lookupds),
                "three node ids",
            )
            node_ids = [id_in_use(nsqd) for nsqd in nsqds]

            assert 3 == len(set(node_ids))
            assert node_ids == [stored_id(nsqd.data_path) for nsqd in nsqds]
            wait_until(
                lambda: all(sorted(node_ids) == registered_ids(each) for each in lookupds),
                "both nsqlookupds to have them",
            )

    def test_with_the_option_is_only_logged(
        self, nsqlookupd: NsqlookupdProcess, tmp_path: Path
    ) -> None:
        nsqlookupd.node("other.example", node_id=7)
        with run_nsqd("--node-id=7", address_flag(nsqlookupd), data_path=tmp_path) as nsqd:
            wait_until(lambda: "set another --node-id" in nsqd.log, "the warning")

            assert (
                f"LOOKUPD({nsqlookupd.tcp_address}): node id 7 is also used by other.example:4151, "
                "so message ids may be equal; set another --node-id"
            ) in nsqd.log
            assert 7 == id_in_use(nsqd)
            assert [7, 7] == registered_ids(nsqlookupd)

    def test_after_the_first_registration_is_only_logged(self, tmp_path: Path) -> None:
        with scripted_lookupd() as lookupd:
            flag = f"--lookupd-tcp-address={lookupd.address}"
            with run_with_stored_id(tmp_path, 7, flag) as nsqd:
                nsqd.publish("t", b"x")
                lookupd.hears(Register("t"))
                lookupd.answer = reporting([7])
                lookupd.say(b"\xff\xff\xff\xff")  # Invalid, so that nsqd reconnects.
                wait_until(lambda: "restart this nsqd" in nsqd.log, "the warning")

                assert 7 == id_in_use(nsqd) == stored_id(nsqd.data_path)
                nsqd.restart()
                wait_until(lambda: 7 != stored_id(nsqd.data_path), "another node id")

    def test_reported_without_end_is_ignored_at_last(self, tmp_path: Path) -> None:
        def always(event: Event) -> bytes:
            assert not isinstance(event, IdentifyPeer) or event.peer.node_id is not None
            return reporting([event.peer.node_id] if isinstance(event, IdentifyPeer) else [])(event)

        with scripted_lookupd(always) as lookupd:
            flag = f"--lookupd-tcp-address={lookupd.address}"
            with run_nsqd(flag, data_path=tmp_path) as nsqd:
                wait_until(lambda: "restart this nsqd" in nsqd.log, "the warning")
                nsqd.publish("t", b"x")
                lookupd.hears(Register("t"))

                assert CHANGES_MAX == nsqd.log.count("; changed to ")
                identities = [each for each in lookupd.heard if isinstance(each, IdentifyPeer)]
                node_ids = [each.peer.node_id for each in identities]
                assert CHANGES_MAX + 1 == len(node_ids) == len(set(node_ids))


def test_nsqlookupd_of_nsq(tmp_path: Path) -> None:
    """Its response to IDENTIFY has no node ids."""
    stock = (
        b'{"broadcast_address":"127.0.0.1","hostname":"h","http_port":1,"tcp_port":2,'
        b'"version":"1.3.0"}'
    )

    def answer(event: Event) -> bytes:
        return lookup_v1.response(stock) if isinstance(event, IdentifyPeer) else lookup_v1.OK

    with scripted_lookupd(answer) as lookupd:
        flag = f"--lookupd-tcp-address={lookupd.address}"
        with run_with_stored_id(tmp_path, 7, flag) as nsqd:
            nsqd.publish("t", b"x")
            lookupd.hears(Register("t"))

            assert 7 == id_in_use(nsqd)
            assert 1 == len(lookupd.connected_at)


def reporting(used: list[int | None]) -> Callable[[Event], bytes]:
    """The responses of an nsqlookupd with other nsqds that have these node ids."""

    def answer(event: Event) -> bytes:
        if not isinstance(event, IdentifyPeer):
            return script.well(event)
        fields: dict[str, Any] = {"broadcast_address": "127.0.0.1", "http_port": 1}
        fields["used_node_ids"] = used
        if event.peer.node_id in used:
            fields["node_id_used_by"] = "other:4151"
        return lookup_v1.response(json.dumps(fields).encode())

    return answer


class TestCheck:
    """`NodeId.check` alone."""

    @pytest.fixture
    def files(self) -> FaultyFiles:
        memory = MemoryFiles()
        memory.make_folder("data")
        return FaultyFiles(memory)

    @pytest.fixture
    def logged(self) -> list[str]:
        return []

    @pytest.fixture
    def node_id(self, files: FaultyFiles, logged: list[str]) -> NodeId:
        data_path = DataPath.open("data", LogSettings(), files)
        return NodeId(data_path, None, Logger("", write=logged.append))

    def report(self, *used: int) -> LookupdInfo:
        return LookupdInfo(used_node_ids=list(used), node_id_used_by="other:4151")

    def test_new_id_is_free_at_all_nsqlookupds(self, node_id: NodeId) -> None:
        free = (node_id.value + 1) % NODE_IDS
        others = [each for each in range(NODE_IDS) if each not in (free, node_id.value)]
        node_id.check("a:4160", LookupdInfo(used_node_ids=others[:500]), is_first=True)
        node_id.check("b:4160", self.report(node_id.value, *others[500:]), is_first=True)

        assert free == node_id.value

    def test_id_is_kept_if_none_is_free(self, node_id: NodeId, logged: list[str]) -> None:
        old = node_id.value
        node_id.check("a:4160", self.report(*range(NODE_IDS)), is_first=True)

        assert old == node_id.value
        assert 1 == len(logged)

    def test_id_of_a_replicated_data_path_is_kept(
        self, files: FaultyFiles, logged: list[str]
    ) -> None:
        data_path = DataPath.open("data", LogSettings(), files)
        node_id = NodeId(data_path, None, Logger("", write=logged.append), is_replicated=True)
        old = node_id.value
        node_id.check("a:4160", self.report(old), is_first=True)

        assert (old, old) == (node_id.value, data_path.node_id)
        assert "is also used by other:4151" in logged[0]

    def test_invalid_ids_are_ignored(self, node_id: NodeId) -> None:
        old = node_id.value
        node_id.check("a:4160", self.report(-1, 1024, 2**70), is_first=True)

        assert node_id.value in set(range(NODE_IDS)) - {old}

    def test_id_is_kept_if_the_new_one_cannot_be_stored(
        self, node_id: NodeId, files: FaultyFiles, logged: list[str]
    ) -> None:
        old, changes = node_id.value, list[int]()
        node_id.on_change = lambda: changes.append(node_id.value)
        files.fail("create", error=errno.ENOSPC)
        node_id.check("a:4160", self.report(old), is_first=True)

        assert (old, []) == (node_id.value, changes)
        assert "cannot be changed - cannot write the node id to data: disk full" in logged[0]

    def test_collision_with_one_nsqd_is_logged_once(
        self, node_id: NodeId, logged: list[str]
    ) -> None:
        for _ in range(3):
            node_id.check("a:4160", self.report(node_id.value), is_first=False)

        assert 1 == len(logged)
