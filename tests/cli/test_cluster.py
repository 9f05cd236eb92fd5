"""penstock cluster as a program, with a real etcd and real members."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe
from tests.net.tls.certificates import Authority

from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import EtcdTls, has_etcd, run_etcd
from penstock.testing.nsqd import run_nsqd
from penstock.testing.replicated import ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def node() -> Iterator[ReplicatedNode]:
    with run_replicated_node() as running:
        yield running


def run(node: ReplicatedNode, *args: str) -> "subprocess.CompletedProcess[str]":
    return in_pipe("penstock", "cluster", *args, "--etcd", node.etcd.url, "--cluster", "shop")


def failure_of(node: ReplicatedNode, *args: str) -> str:
    """The error of a command that fails; it must be one line."""
    done = run(node, *args)
    assert (1, "") == (done.returncode, done.stdout), done
    (line,) = done.stderr.splitlines()
    return line


def test_status(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    epoch = str(node.status(leader)["epoch"])
    done = run(node, "status")
    assert (0, "") == (done.returncode, done.stderr)
    heading, row = done.stdout.splitlines()
    assert ["node", "leader", "epoch", "in", "sync", "members", "lag"] == heading.split()
    assert ["n1", leader, epoch, "a", "b", "c", "a", "b", "c", "0"] == row.split()

    (shown,) = json.loads(run(node, "status", "--json").stdout)
    assert ("n1", leader, ["a", "b", "c"]) == (shown["node"], shown["leader"], shown["in_sync"])
    assert shown["status"]["role"] == "leading"
    assert [True] * 3 == [each["alive"] for each in shown["members"]]


def test_the_environment_names_etcd_and_the_cluster(node: ReplicatedNode) -> None:
    with reserved_address() as unused:
        env = {
            "PENSTOCK_ETCD": f"http://{unused},{node.etcd.url}",
            "PENSTOCK_CLUSTER": "shop",
        }
        done = in_pipe("penstock", "cluster", "status", env=env)
    assert 0 == done.returncode, done.stderr
    assert "n1" in done.stdout


def test_members(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    rows = [line.split() for line in run(node, "members").stdout.splitlines()[1:]]
    assert ["a", "b", "c"] == [row[1] for row in rows]
    for row in rows:
        name = row[1]
        member = node.members[name]
        role = "leader" if name == leader else "follower"
        assert ["n1", name, role, "yes", member.tcp_address, member.http_address] == row[:6]
        assert row[7] == ("-" if name == leader else "0")


def test_move(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    for member in (min({"a", "b", "c"} - {leader}), leader):
        done = run(node, "move", "n1", member)
        assert (0, f"{member} leads n1\n") == (done.returncode, done.stderr)
        wait_until(lambda: node.leader() == member, "the new leader")  # noqa: B023
        node.wait_in_sync(3)


def test_errors(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    follower = min({"a", "b", "c"} - {leader})
    assert "penstock: cluster shop has no node n2; nodes: n1" == failure_of(node, "move", "n2", "a")
    for action in ("move", "remove-member"):
        error = failure_of(node, action, "n1", "x")
        assert "penstock: x is not a member; members: a, b, c" == error
    error = failure_of(node, "force-leader", "n1", "x", "--yes")
    assert "penstock: x is not a member of node n1; members: a, b, c" == error
    error = failure_of(node, "remove-member", "n1", leader)
    assert f"penstock: {leader} is the leader; move the leadership to another member" == error
    error = failure_of(node, "remove-member", "n1", follower)
    assert f"penstock: {follower} is running and would join again: stop it first" == error
    error = failure_of(node, "force-leader", "n1", follower, "--yes")
    assert "is running and in sync: it leads node n1 or takes over by itself" in error


def test_errors_of_etcd(node: ReplicatedNode, tmp_path: Path) -> None:
    with reserved_address() as unused:
        done = in_pipe(
            "penstock", "cluster", "status", "--etcd", f"http://{unused}", "--cluster", "shop"
        )
    assert 1 == done.returncode
    assert unused in done.stderr
    done = in_pipe("penstock", "cluster", "status", "--etcd", node.etcd.url, "--cluster", "other")
    assert (1, "penstock: etcd has no cluster other\n") == (done.returncode, done.stderr)
    done = in_pipe("penstock", "cluster", "status", "--etcd", "10.0.0.1:2379", "--cluster", "shop")
    assert 1 == done.returncode
    missing = str(tmp_path / "missing")
    error = failure_of(node, "status", "--etcd-password-file", missing)
    assert f"penstock: cannot read {missing}: No such file or directory" == error
    assert 2 == in_pipe("penstock", "cluster", "status", "--cluster", "shop").returncode


def test_user_and_password(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    with run_etcd() as etcd:
        etcd.enable_authentication("secret")
        place = ("--etcd", etcd.url, "--cluster", "shop")
        user = ("--etcd-user", "root", "--etcd-password-file", str(password))
        done = in_pipe("penstock", "cluster", "status", *place, *user)
        assert "penstock: etcd has no cluster shop\n" == done.stderr
        password.write_text("wrong\n")
        done = in_pipe("penstock", "cluster", "status", *place, *user)
        assert 1 == done.returncode
        assert "etcd has no cluster" not in done.stderr


def test_etcd_over_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("etcd")
    trusting = ssl.create_default_context(cafile=authority.root_ca)
    trust = f"--etcd-tls-root-ca-file={authority.root_ca}"
    with (
        run_etcd(EtcdTls(Path(issued.cert), Path(issued.key), trusting)) as etcd,
        reserved_address() as tcp,
        reserved_address() as http,
    ):
        place = (f"--etcd={etcd.url}", "--cluster=shop")
        member = ("--node=n1", f"--tcp-address={tcp}", f"--http-address={http}")
        with run_nsqd(*place, *member, trust):
            done = in_pipe("penstock", "cluster", "status", *place, trust)
            assert 0 == done.returncode, done.stderr
            assert "n1" in done.stdout
        done = in_pipe("penstock", "cluster", "status", *place)
        assert 1 == done.returncode
        assert "certificate verify failed" in done.stderr


def test_remove_member(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    removed = min({"a", "b", "c"} - {leader})
    others = sorted({"a", "b", "c"} - {removed})
    node.kill(removed)
    node.wait_in_sync(2)
    wait_until(lambda: f"{removed}(down)" in run(node, "status").stdout, "the member to be away")
    done = run(node, "remove-member", "n1", removed)
    assert (0, f"removed {removed} from n1\n") == (done.returncode, done.stderr)
    wait_until(lambda: node.status(leader).get("members") == others, "the record")
    assert removed not in run(node, "status").stdout.split()
    node.start(removed)  # joins again
    node.wait_in_sync(3)


def test_force_leader(node: ReplicatedNode) -> None:
    """The last member comes back after messages were published without it, and the others are
    lost."""
    leader = node.wait_in_sync(3)
    survivor, other = sorted({"a", "b", "c"} - {leader})
    node.led_by.publish("orders", b"on all")
    node.kill(survivor)
    node.wait_in_sync(2)
    node.led_by.publish("orders", b"not on the survivor")
    node.kill(other, leader)
    error = failure_of(node, "force-leader", "n1", survivor, "--yes")
    assert f"penstock: {survivor} is not running: start it first" == error or "in sync" in error
    node.start(survivor)

    def is_refused_for_the_missing_terminal() -> bool:
        done = run(node, "force-leader", "n1", survivor)
        assert 1 == done.returncode
        return done.stderr.endswith("penstock: no terminal to ask for confirmation: pass --yes\n")

    wait_until(is_refused_for_the_missing_terminal, "the entries of the others to expire")
    assert node.status(survivor)["role"] != "leading"
    done = run(node, "force-leader", "n1", survivor, "--yes")
    assert 0 == done.returncode
    assert f"{survivor} may lack messages that were acknowledged" in done.stderr
    assert done.stderr.endswith(f"{survivor} leads n1\n")
    assert survivor == node.wait_for_leader()
    node.start(leader, other)
    node.wait_in_sync(3)

    def stored() -> list[str]:
        # The preferred leader may take over at any moment.
        code, lines = node.led_by.get("/topic/messages?topic=orders") or (0, b"")
        return [json.loads(line)["body"] for line in lines.splitlines()] if code == 200 else []

    assert ["on all"] == wait_until(stored, "the messages")
