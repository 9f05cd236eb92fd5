"""/replication, /stats and /metrics of the members of a replicated node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.replicated_members import Members, fetch, run_members

from penstock.nsqd.replication_metrics import REPLICATION_FAMILIES
from penstock.testing.etcd import has_etcd
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    with run_members(tmp_path_factory.mktemp("members")) as running:
        running.wait_in_sync("a", "b", "c")
        running.publish("orders", *(b"message" for _ in range(10)))
        yield running


def metrics_of(members: Members, name: str) -> dict[tuple[str, str], float]:
    """Values by the name of the metric and the follower."""
    code, page = fetch(members.http[name], "/metrics")
    assert 200 == code
    return {
        (sample.name, sample.labels.get("follower", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("nsqd_replication_")
    }


def test_leader(members: Members) -> None:
    leader = members.leader()
    followers = sorted({"a", "b", "c"} - {leader})

    def settled() -> dict[str, Any] | None:
        """The status, if no message is on its way to a follower at this moment."""
        found: dict[str, Any] = members.status(leader)
        kinds = ("lag_messages", "lag_bytes", "lag_seconds")
        lags = {tuple(each[kind] for kind in kinds) for each in found["followers"]}
        return found if lags == {(0, 0, 0.0)} else None

    status = wait_until(settled, "the followers to have everything")
    assert status is not None
    assert status["last_takeover"] > 0
    expected = {
        "cluster": "shop",
        "node": "n1",
        "member": leader,
        "role": "leading",
        "etcd_connected": True,
        "replicas": 3,
        "min_in_sync": 2,
        "leader": leader,
        "in_sync": ["a", "b", "c"],
        "members": ["a", "b", "c"],
        "alive": ["a", "b", "c"],
        "takeovers": 1,
        "following": None,
    }
    assert expected == {key: status[key] for key in expected}
    assert followers == [each["member"] for each in status["followers"]]
    for each in status["followers"]:
        assert (True, True) == (each["connected"], each["in_sync"])
        assert each["catch_up_bytes_total"] is None


def test_follower(members: Members) -> None:
    leader = members.leader()
    for name in {"a", "b", "c"} - {leader}:
        status = members.status(name)
        assert ("following", leader, 0) == (status["role"], status["leader"], status["takeovers"])
        assert status["followers"] is None
        following = status["following"]
        assert following["leader_address"] == members.tcp[leader]
        assert following["connected"]
        assert 0 < following["acknowledged_position"] <= following["applied_position"]
        assert following["last_contact_seconds"] >= 0

        code, stats = fetch(members.http[name], "/stats?format=json")
        assert 200 == code
        shown = json.loads(stats)
        assert ("OK", "following", []) == (shown["health"], shown["role"], shown["topics"])
        assert "Role: following" in fetch(members.http[name], "/stats")[1]
        assert (503, "NOT_LEADING") == fetch(members.http[name], "/ready")
        for target in ("/topics/log", "/topic/messages?topic=t"):
            assert (503, '{"message":"NOT_LEADING"}') == fetch(members.http[name], target)


def test_metrics(members: Members) -> None:
    leader = members.leader()
    for name in ("a", "b", "c"):
        values = metrics_of(members, name)
        is_leading = name == leader
        assert values["nsqd_replication_leading", ""] == is_leading
        assert values["nsqd_replication_takeovers_total", ""] == is_leading
        assert values["nsqd_replication_in_sync", ""] == 3
        assert values["nsqd_replication_replicas", ""] == 3
        assert values["nsqd_replication_min_in_sync", ""] == 2
        assert values["nsqd_replication_epoch", ""] == members.status(leader)["epoch"]
        assert values["nsqd_replication_etcd_connected", ""] == 1
        assert values["nsqd_replication_leader_connected", ""] == 1
        followers = {"a", "b", "c"} - {name} if is_leading else set()
        for figure in ("connected", "in_sync", "lag_messages", "lag_bytes", "lag_seconds"):
            metric = f"nsqd_replication_follower_{figure}"
            assert followers == {member for found, member in values if found == metric}
        assert {family.name for family in REPLICATION_FAMILIES} >= {found for found, _ in values}
        page = fetch(members.http[name], "/metrics")[1]
        assert "process_cpu_seconds_total" in page
        for family in REPLICATION_FAMILIES:
            assert family.head in page


def test_a_follower_that_is_away_lags_and_then_catches_up(members: Members) -> None:
    leader = members.leader()
    away = min({"a", "b", "c"} - {leader})
    others = {"a", "b", "c"} - {away}

    def follower() -> dict[str, object]:
        rows = members.status(leader)["followers"]
        found: dict[str, object] = next(each for each in rows if each["member"] == away)
        return found

    members.kill(away)
    members.wait_in_sync(*others)
    members.publish("orders", *(b"message" for _ in range(20)))
    shown = follower()
    assert (False, False) == (shown["connected"], shown["in_sync"])
    assert 20 == shown["lag_messages"]
    assert isinstance(shown["lag_bytes"], int)
    assert shown["lag_bytes"] > 20 * len(b"message")
    assert isinstance(shown["lag_seconds"], float)
    assert shown["lag_seconds"] > 0
    values = metrics_of(members, leader)
    assert 2 == values["nsqd_replication_in_sync", ""]
    assert 20 == values["nsqd_replication_follower_lag_messages", away]
    members.start(away)
    members.wait_in_sync("a", "b", "c")
    wait_until(lambda: follower()["lag_messages"] == follower()["lag_bytes"] == 0, "no lag")


def test_takeover(members: Members) -> None:
    earlier = members.wait_in_sync("a", "b", "c")
    epoch = members.status(earlier)["epoch"]
    members.kill(earlier)
    leader = members.leader()
    status = members.status(leader)
    assert (leader, 1) == (status["leader"], status["takeovers"])
    assert status["epoch"] > epoch
    members.start(earlier)
    members.wait_in_sync("a", "b", "c")


def test_etcd_unreachable(members: Members) -> None:
    leader = members.wait_in_sync("a", "b", "c")
    members.etcd.kill()
    wait_until(
        lambda: all(
            not metrics_of(members, each)["nsqd_replication_etcd_connected", ""] for each in "abc"
        ),
        "etcd to be missed",
    )
    members.etcd.start()
    wait_until(lambda: members.status(leader).get("etcd_connected"), "etcd to be reached")
