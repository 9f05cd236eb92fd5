"""Conditions under which a member cannot take part: one clear error, and nothing is changed."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.replication.node_record import create_record, encode_record
from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdProcess, has_etcd, run_etcd
from penstock.testing.nsqd import run_nsqd
from penstock.testing.replicated import CLUSTER, FAST_TAKEOVER, MemberProcess
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with run_etcd() as process:
        yield process


class Members:
    """Members that a test starts; killed at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def new(
        self, etcd_url: str, node: str, *flags: str, name: str = "a", folder: str = ""
    ) -> MemberProcess:
        """A member that is not started yet."""
        addresses = [self._stack.enter_context(reserved_address()) for _ in range(2)]
        path = self._folder / (folder or name)
        path.mkdir(exist_ok=True)
        log = self._stack.enter_context((self._folder / f"{addresses[0]}.log").open("w+b"))
        common = [f"--cluster={CLUSTER}", f"--node={node}", f"--etcd={etcd_url}", *FAST_TAKEOVER]
        member = MemberProcess(
            name, (addresses[0], addresses[1]), path, [*common, *flags], log.fileno()
        )
        self._stack.callback(member.release)
        return member

    def leading(self, etcd_url: str, node: str, *flags: str) -> MemberProcess:
        """A member that leads, and has one message."""
        member = self.new(etcd_url, node, "--min-in-sync=1", *flags)
        member.start()
        wait_until(lambda: member.is_leading, "a leader", seconds=20)
        member.publish("t", b"x")
        return member


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(tmp_path, stack)


def error_of(member: MemberProcess) -> str:
    """Start a member that cannot take part; returns its error."""
    with unchanged(member.data_path):
        with suppress(member.start_error):
            member.start()
        exit_code = member.wait()
    member.check_log()
    errors = [line for line in member.log.splitlines() if " FATAL" in line or "FATAL:" in line]
    assert 1 == exit_code, member.log
    assert 1 == len(errors), member.log
    return errors[0]


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Fails if the block changes topics or nsqd.dat."""

    def content() -> dict[str, bytes]:
        files = (each for each in path.rglob("*") if each.is_file())
        return {
            str(each): each.read_bytes()
            for each in files
            if each.suffix in (".log", ".dat") or each.name.startswith(("cursors", "penstock.m"))
        }

    before = content()
    yield
    assert before == content()


def put_record(etcd: EtcdProcess, node: str, value: bytes) -> None:
    key = f"/penstock/{CLUSTER}/{node}/record"
    encoded = [base64.b64encode(each).decode() for each in (key.encode(), value)]
    etcd.call("/v3/kv/put", key=encoded[0], value=encoded[1])


def test_etcd_cannot_be_reached(members: Members) -> None:
    with reserved_address() as address:
        error = error_of(members.new(f"http://{address}", "n1"))

    assert f"cannot reach etcd at http://{address}" in error


def test_the_address_is_not_that_of_etcd(members: Members) -> None:
    with run_nsqd() as nsqd:
        error = error_of(members.new(f"http://{nsqd.http_address}", "n1"))

    assert f"http://{nsqd.http_address}" in error


def test_etcd_rejects_the_password(members: Members, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong")
    with run_etcd() as etcd:
        etcd.enable_authentication("right")
        flags = ["--etcd-user=root", f"--etcd-password-file={tmp_path / 'password'}"]
        error = error_of(members.new(etcd.url, "n1", *flags))

    assert "etcd" in error
    assert "password" in error


def test_the_record_has_a_newer_format(members: Members, etcd: EtcdProcess) -> None:
    record = encode_record(create_record("0", "b", "1"))
    put_record(etcd, "newer", record.replace(b'"format":1', b'"format":2'))

    assert "the cluster has format 2" in error_of(members.new(etcd.url, "newer"))


def test_the_data_path_has_topics_of_its_own(members: Members, etcd: EtcdProcess) -> None:
    leader = members.leading(etcd.url, "own")
    other = members.new(etcd.url, "own", name="b")
    with run_nsqd(data_path=other.data_path) as nsqd:
        nsqd.publish("t", b"x")

    assert "the data path has topics of its own" in error_of(other)
    assert leader.is_leading


def test_the_data_path_is_that_of_another_member(members: Members, etcd: EtcdProcess) -> None:
    leader = members.leading(etcd.url, "moved")
    leader.terminate()

    error = error_of(members.new(etcd.url, "moved", name="b", folder="a"))
    assert "belongs to member a of node moved" in error


def test_the_data_path_is_that_of_another_node(members: Members, etcd: EtcdProcess) -> None:
    """A node of the same name, in another etcd."""
    with run_etcd() as other_etcd:
        members.leading(other_etcd.url, "twice").terminate()
    put_record(etcd, "twice", encode_record(create_record("0", "b", "1")))

    error = error_of(members.new(etcd.url, "twice"))
    assert "the data path belongs to another node than twice" in error


def test_etcd_has_no_record_of_the_node(members: Members, etcd: EtcdProcess) -> None:
    with run_etcd() as other_etcd:
        members.leading(other_etcd.url, "unknown").terminate()

    error = error_of(members.new(etcd.url, "unknown"))
    assert "etcd has no record of node unknown" in error


def test_two_processes_are_the_same_member(members: Members, etcd: EtcdProcess) -> None:
    leader = members.leading(etcd.url, "same")

    error = error_of(members.new(etcd.url, "same", folder="other"))
    assert f"another process runs as member a of node same, at {leader.tcp_address}" in error
    assert leader.is_leading


def test_the_leader_rejects_a_token(members: Members, etcd: EtcdProcess, tmp_path: Path) -> None:
    """The follower goes on trying: the token of the leader may be the wrong one."""
    for name in ("right", "wrong"):
        (tmp_path / f"{name}-token").write_text(name)
    token = f"--cluster-token-file={tmp_path / 'right-token'}"
    leader = members.leading(etcd.url, "token", token)
    wrong = f"--cluster-token-file={tmp_path / 'wrong-token'}"
    follower = members.new(etcd.url, "token", wrong, name="b")
    follower.start()
    wait_until(lambda: "the token is wrong" in follower.log, "a refusal")
    status = leader.status()

    assert status is not None
    assert ["a"] == status["in_sync"]
    assert not list((follower.data_path / "topics").glob("t*"))
    follower.terminate()
    leader.terminate()
    for member in (follower, leader):
        member.check()
