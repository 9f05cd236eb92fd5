"""penstock cluster as a program, with a real etcd and real members."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe
from tests.replicated_members import Members, fetch, run_members

from penstock.testing.addresses import reserved_address
from penstock.testing.etcd import has_etcd, run_etcd
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with run_members(tmp_path_factory.mktemp("members")) as running:
        running.wait_in_sync("a", "b", "c")
        yield running


def run(members: Members, *args: str) -> "subprocess.CompletedProcess[str]":
    return in_pipe("penstock", "cluster", *args, "--etcd", members.etcd.url, "--cluster", "shop")


def failure_of(members: Members, *args: str) -> str:
    """The error of a command that fails; it must be one line."""
    done = run(members, *args)
    assert (1, "") == (done.returncode, done.stdout), done
    (line,) = done.stderr.splitlines()
    return line


def test_status(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    epoch = str(members.status(leader)["epoch"])
    done = run(members, "status")
    assert (0, "") == (done.returncode, done.stderr)
    heading, row = done.stdout.splitlines()
    assert ["node", "leader", "epoch", "in", "sync", "members", "lag"] == heading.split()
    assert ["n1", leader, epoch, "a", "b", "c", "a", "b", "c", "0"] == row.split()

    (node,) = json.loads(run(members, "status", "--json").stdout)
    assert ("n1", leader, ["a", "b", "c"]) == (node["node"], node["leader"], node["in_sync"])
    assert node["status"]["role"] == "leading"
    assert [True] * 3 == [each["alive"] for each in node["members"]]


def test_the_environment_names_etcd_and_the_cluster(members: Members) -> None:
    with reserved_address() as unused:
        env = {
            "PENSTOCK_ETCD": f"http://{unused},{members.etcd.url}",
            "PENSTOCK_CLUSTER": "shop",
        }
        done = in_pipe("penstock", "cluster", "status", env=env)
    assert 0 == done.returncode, done.stderr
    assert "n1" in done.stdout


def test_members(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    rows = [line.split() for line in run(members, "members").stdout.splitlines()[1:]]
    assert ["a", "b", "c"] == [row[1] for row in rows]
    for row in rows:
        name = row[1]
        role = "leader" if name == leader else "follower"
        assert ["n1", name, role, "yes", members.tcp[name], members.http[name]] == row[:6]
        assert row[7] == ("-" if name == leader else "0")


def test_move(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    for member in (min({"a", "b", "c"} - {leader}), leader):
        done = run(members, "move", "n1", member)
        assert (0, f"{member} leads n1\n") == (done.returncode, done.stderr)
        wait_until(lambda: members.status(member).get("role") == "leading", "the new leader")  # noqa: B023
        members.wait_in_sync("a", "b", "c")


def test_errors(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    follower = min({"a", "b", "c"} - {leader})
    assert "penstock: cluster shop has no node n2; nodes: n1" == failure_of(
        members, "move", "n2", "a"
    )
    for action in ("move", "remove-member"):
        error = failure_of(members, action, "n1", "x")
        assert "penstock: x is not a member; members: a, b, c" == error
    error = failure_of(members, "force-leader", "n1", "x", "--yes")
    assert "penstock: x is not a member of node n1; members: a, b, c" == error
    error = failure_of(members, "remove-member", "n1", leader)
    assert f"penstock: {leader} is the leader; move the leadership to another member" == error
    error = failure_of(members, "remove-member", "n1", follower)
    assert f"penstock: {follower} is running and would join again: stop it first" == error
    error = failure_of(members, "force-leader", "n1", follower, "--yes")
    assert "is running and in sync: it leads node n1 or takes over by itself" in error


def test_errors_of_etcd(members: Members, tmp_path: Path) -> None:
    with reserved_address() as unused:
        done = in_pipe(
            "penstock", "cluster", "status", "--etcd", f"http://{unused}", "--cluster", "shop"
        )
    assert 1 == done.returncode
    assert unused in done.stderr
    done = in_pipe(
        "penstock", "cluster", "status", "--etcd", members.etcd.url, "--cluster", "other"
    )
    assert (1, "penstock: etcd has no cluster other\n") == (done.returncode, done.stderr)
    done = in_pipe("penstock", "cluster", "status", "--etcd", "10.0.0.1:2379", "--cluster", "shop")
    assert 1 == done.returncode
    missing = str(tmp_path / "missing")
    error = failure_of(members, "status", "--etcd-password-file", missing)
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


def test_remove_member(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    removed = min({"a", "b", "c"} - {leader})
    others = sorted({"a", "b", "c"} - {removed})
    members.kill(removed)
    members.wait_in_sync(*others)
    wait_until(lambda: f"{removed}(down)" in run(members, "status").stdout, "the member to be away")
    done = run(members, "remove-member", "n1", removed)
    assert (0, f"removed {removed} from n1\n") == (done.returncode, done.stderr)
    wait_until(lambda: members.status(leader).get("members") == others, "the record")
    assert removed not in run(members, "status").stdout.split()
    members.start(removed)  # joins again
    members.wait_in_sync("a", "b", "c")


def test_force_leader(members: Members) -> None:
    """The last member comes back after messages were published without it, and the others are
    lost."""
    leader = members.wait_in_sync("a", "b", "c")
    survivor, other = sorted({"a", "b", "c"} - {leader})
    members.publish("orders", b"on all")
    members.kill(survivor)
    members.wait_in_sync(leader, other)
    members.publish("orders", b"not on the survivor")
    members.kill(other)
    members.kill(leader)
    error = failure_of(members, "force-leader", "n1", survivor, "--yes")
    assert f"penstock: {survivor} is not running: start it first" == error or "in sync" in error
    members.start(survivor)

    def is_refused_for_the_missing_terminal() -> bool:
        done = run(members, "force-leader", "n1", survivor)
        assert 1 == done.returncode
        return done.stderr.endswith("penstock: no terminal to ask for confirmation: pass --yes\n")

    wait_until(is_refused_for_the_missing_terminal, "the entries of the others to expire")
    assert members.status(survivor)["role"] != "leading"
    done = run(members, "force-leader", "n1", survivor, "--yes")
    assert 0 == done.returncode
    assert f"{survivor} may lack messages that were acknowledged" in done.stderr
    assert done.stderr.endswith(f"{survivor} leads n1\n")
    assert survivor == members.leader()
    for name in (leader, other):
        members.start(name)
    members.wait_in_sync("a", "b", "c")

    def stored() -> list[str]:
        # The preferred leader may take over at any moment.
        code, lines = fetch(members.http[members.leader()], "/topic/messages?topic=orders")
        return [json.loads(line)["body"] for line in lines.splitlines()] if code == 200 else []

    assert ["on all"] == wait_until(stored, "the messages")
