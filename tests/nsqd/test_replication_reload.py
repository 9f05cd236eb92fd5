"""A follower reads tokens and certificates again at SIGHUP, and is not stopped by it."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority

from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import has_etcd
from penstock.testing.replicated import (
    CLUSTER,
    FAST_TAKEOVER,
    NODE,
    MemberProcess,
    run_replicated_node,
)
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@contextmanager
def run_follower(folder: Path, etcd_url: str, flags: Sequence[str]) -> Iterator[MemberProcess]:
    """Member b, beside a leader; its HTTP requests may need a token."""
    data_path = folder / "b"
    data_path.mkdir()
    common = (f"--cluster={CLUSTER}", f"--node={NODE}", f"--etcd={etcd_url}", *FAST_TAKEOVER)
    with (
        reserved_address() as tcp,
        reserved_address() as http,
        (folder / "b.log").open("w+b") as log,
    ):
        member = MemberProcess("b", (tcp, http), data_path, [*common, *flags], log.fileno())
        try:
            member.start()
            wait_for_log(member, "REPLICATION: following")
            yield member
            member.terminate()
        finally:
            member.release()


def wait_for_log(member: MemberProcess, text: str) -> None:
    wait_until(lambda: text in member.whole_log, text)


def test_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("read old\n")
    flags = (*FAST_TAKEOVER, "--min-in-sync=1")
    with (
        run_replicated_node(members=("a",), flags=flags) as node,
        run_follower(
            tmp_path, node.etcd.url, ("--min-in-sync=1", f"--http-auth-token-file={tokens}")
        ) as follower,
    ):

        def status_with(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return follower.http("GET", "/replication", headers=headers).status

        assert (200, 401) == (status_with("old"), status_with("new"))
        tokens.write_text("read new\n")
        follower.send_signal(signal.SIGHUP)
        wait_for_log(follower, "SIGHUP, tokens of a follower reloaded")
        assert (401, 200) == (status_with("old"), status_with("new"))

        tokens.write_text("nonsense\n")
        follower.send_signal(signal.SIGHUP)
        wait_for_log(follower, "SIGHUP, the old tokens of a follower stay in use")
        assert 200 == status_with("new")


@pytest.mark.parametrize("with_cluster_tls", [True, False])
def test_certificates(tmp_path: Path, with_cluster_tls: bool) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    flags = (
        *FAST_TAKEOVER,
        f"--cluster-tls={str(with_cluster_tls).lower()}",
        f"--tls-cert={issued.cert}",
        f"--tls-key={issued.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--https-address=",
    )
    with run_replicated_node(members=("a", "b"), flags=flags) as node:
        leader = node.wait_for_leader()
        follower = node.members["b" if leader == "a" else "a"]
        for member in node.members.values():
            member.send_signal(signal.SIGHUP)
            wait_for_log(member, "SIGHUP, certificates reloaded")
        if with_cluster_tls:
            wait_for_log(follower, "SIGHUP, certificates for the leader reloaded")

        Path(issued.key).write_text("not a key")
        follower.send_signal(signal.SIGHUP)
        wait_for_log(follower, "SIGHUP, the old certificates stay in use")
        authority.issue("server")
        node.kill(leader)
        node.wait_for_leader(not_=leader)
