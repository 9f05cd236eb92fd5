"""Members of a replicated node encrypt their connections, and refuse foreign certificates."""

from pathlib import Path
from typing import Any

import pytest
from tests.net.tls.certificates import Authority

from penstock.common.errors import ConfigError
from penstock.nsqd.options import NsqdOptions, TlsRequired, check
from penstock.testing.etcd import has_etcd
from penstock.testing.replicated import FAST_TAKEOVER, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


def tls_flags(authority: Authority, name: str) -> tuple[str, ...]:
    issued = authority.issue(name)
    return (
        "--cluster-tls",
        f"--tls-cert={issued.cert}",
        f"--tls-key={issued.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--https-address=",
    )


def test_members_replicate_over_tls(tmp_path: Path) -> None:
    flags = (*FAST_TAKEOVER, *tls_flags(Authority(tmp_path), "server"), "--tls-required=tcp-https")
    with run_replicated_node(flags=flags) as node:
        leader = node.wait_for_leader()
        node.wait_in_sync(3)
        assert "following" in "".join(member.log for member in node.members.values())
        answer = node.members[leader].http("POST", "/pub?topic=t", b"over TLS")
        assert 200 == answer.status
        node.kill(leader)
        other = node.wait_for_leader(not_=leader)
        wait_until(lambda: 1 == node.members[other].stats("t")["depth"], "the message")


def test_member_with_a_foreign_certificate_cannot_follow(tmp_path: Path) -> None:
    own, foreign = Authority(tmp_path, "own"), Authority(tmp_path, "foreign")
    verified = "--tls-client-auth-policy=require-verify"
    flags = (*FAST_TAKEOVER, *tls_flags(own, "server"), verified, "--tls-required=tcp-https")
    with run_replicated_node(members=("a", "b"), flags=flags) as node:
        leader = node.wait_for_leader()
        node.wait_in_sync(2)
        other = "b" if leader == "a" else "a"
        node.terminate(other)
        wait_until(lambda: [leader] == node.status(leader)["in_sync"], "one member in sync")
        foreign.issue("server")  # In the same files, which the leader has read already.
        node.start(other)
        wait_until(lambda: "cannot follow" in node.members[other].log, "the error")

        assert [leader] == node.status(leader)["in_sync"]
        assert 503 == node.members[leader].http("POST", "/pub?topic=t", b"too few").status


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster_tls": True}, "--cluster-tls needs --tls-cert and --tls-key"),
        (
            {"tls_required": TlsRequired.ALL, "tls_cert": "c", "tls_key": "k"},
            "--cluster and --tls-required need --cluster-tls",
        ),
    ],
)
def test_options_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    options = NsqdOptions(
        cluster="shop", node="n", etcd_addresses=("http://127.0.0.1:1",), **changes
    )
    with pytest.raises(ConfigError, match=message):
        check(options)
