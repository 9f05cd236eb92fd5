"""/replication, /stats and /metrics of the members of a replicated node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.nsqd.replication_metrics import REPLICATION_FAMILIES
from penstock.testing.etcd import has_etcd
from penstock.testing.replicated import ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def node() -> Iterator[ReplicatedNode]:
    with run_replicated_node() as running:
        running.led_by.publish("orders", *(b"message" for _ in range(10)))
        yield running


def metrics_of(node: ReplicatedNode, name: str) -> dict[tuple[str, str], float]:
    """Values by the name of the metric and the follower."""
    code, page = node.members[name].http("GET", "/metrics")
    assert 200 == code
    return {
        (sample.name, sample.labels.get("follower", "")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name.startswith("nsqd_replication_")
    }


def test_leader(node: ReplicatedNode) -> None:
    leader = node.wait_for_leader()
    followers = sorted({"a", "b", "c"} - {leader})

    def settled() -> dict[str, Any] | None:
        """The status, if no message is on its way to a follower at this moment."""
        found: dict[str, Any] = node.status(leader)
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


def test_follower(node: ReplicatedNode) -> None:
    leader = node.wait_for_leader()
    for name in {"a", "b", "c"} - {leader}:
        member = node.members[name]
        status = node.status(name)
        assert ("following", leader, 0) == (status["role"], status["leader"], status["takeovers"])
        assert status["followers"] is None
        following = status["following"]
        assert following["leader_address"] == node.members[leader].tcp_address
        assert following["connected"]
        assert 0 < following["acknowledged_position"] <= following["applied_position"]
        assert following["last_contact_seconds"] >= 0

        code, stats = member.http("GET", "/stats?format=json")
        assert 200 == code
        shown = json.loads(stats)
        assert ("OK", "following", []) == (shown["health"], shown["role"], shown["topics"])
        assert b"Role: following" in member.http("GET", "/stats").body
        assert (503, b"NOT_LEADING") == member.http("GET", "/ready")
        for target in ("/topics/log", "/topic/messages?topic=t"):
            assert (503, b'{"message":"NOT_LEADING"}') == member.http("GET", target)


def test_metrics(node: ReplicatedNode) -> None:
    leader = node.wait_for_leader()
    for name in ("a", "b", "c"):
        values = metrics_of(node, name)
        is_leading = name == leader
        assert values["nsqd_replication_leading", ""] == is_leading
        assert values["nsqd_replication_takeovers_total", ""] == is_leading
        assert values["nsqd_replication_in_sync", ""] == 3
        assert values["nsqd_replication_replicas", ""] == 3
        assert values["nsqd_replication_min_in_sync", ""] == 2
        assert values["nsqd_replication_epoch", ""] == node.status(leader)["epoch"]
        assert values["nsqd_replication_etcd_connected", ""] == 1
        assert values["nsqd_replication_leader_connected", ""] == 1
        followers = {"a", "b", "c"} - {name} if is_leading else set()
        for figure in ("connected", "in_sync", "lag_messages", "lag_bytes", "lag_seconds"):
            metric = f"nsqd_replication_follower_{figure}"
            assert followers == {member for found, member in values if found == metric}
        assert {family.name for family in REPLICATION_FAMILIES} >= {found for found, _ in values}
        page = node.members[name].http("GET", "/metrics").body.decode()
        assert "process_cpu_seconds_total" in page
        for family in REPLICATION_FAMILIES:
            assert family.head in page


def test_a_follower_that_is_away_lags_and_then_catches_up(node: ReplicatedNode) -> None:
    leader = node.wait_for_leader()
    away = min({"a", "b", "c"} - {leader})

    def follower() -> dict[str, object]:
        rows = node.status(leader)["followers"]
        found: dict[str, object] = next(each for each in rows if each["member"] == away)
        return found

    node.kill(away)
    node.wait_in_sync(2)
    node.led_by.publish("orders", *(b"message" for _ in range(20)))
    shown = follower()
    assert (False, False) == (shown["connected"], shown["in_sync"])
    assert 20 == shown["lag_messages"]
    assert isinstance(shown["lag_bytes"], int)
    assert shown["lag_bytes"] > 20 * len(b"message")
    assert isinstance(shown["lag_seconds"], float)
    assert shown["lag_seconds"] > 0
    values = metrics_of(node, leader)
    assert 2 == values["nsqd_replication_in_sync", ""]
    assert 20 == values["nsqd_replication_follower_lag_messages", away]
    node.start(away)
    node.wait_in_sync(3)
    wait_until(lambda: follower()["lag_messages"] == follower()["lag_bytes"] == 0, "no lag")


def test_takeover(node: ReplicatedNode) -> None:
    earlier = node.wait_in_sync(3)
    epoch = node.status(earlier)["epoch"]
    node.kill(earlier)
    leader = node.wait_for_leader()
    status = node.status(leader)
    assert (leader, 1) == (status["leader"], status["takeovers"])
    assert status["epoch"] > epoch
    node.start(earlier)
    node.wait_in_sync(3)


def test_etcd_unreachable(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    node.etcd.kill()
    wait_until(
        lambda: all(
            not metrics_of(node, each)["nsqd_replication_etcd_connected", ""] for each in "abc"
        ),
        "etcd to be missed",
    )
    node.etcd.start()
    wait_until(lambda: node.status(leader).get("etcd_connected"), "etcd to be reached")
