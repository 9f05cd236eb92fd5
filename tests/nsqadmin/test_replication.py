"""nsqadmin shows the members of replicated nodes, and their lag."""

from collections.abc import Iterator

import pytest

from penstock.testing.etcd import has_etcd
from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import run_nsqd
from penstock.testing.replicated import ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_etcd(), reason="etcd is not installed")


@pytest.fixture(scope="module")
def node() -> Iterator[ReplicatedNode]:
    with run_replicated_node() as running:
        running.led_by.publish("orders", b"one")
        yield running


def page(nsqadmin: NsqadminProcess, path: str) -> str:
    answer = nsqadmin.http("GET", path, headers={"Accept": "text/html"})
    assert 200 == answer.status
    return " ".join(answer.body.decode().split())


def test_pages(node: ReplicatedNode) -> None:
    leader = node.wait_in_sync(3)
    away = min({"a", "b", "c"} - {leader})
    with (
        run_nsqd() as other,
        run_nsqadmin(
            f"--nsqd-http-address={node.members[leader].http_address}",
            f"--nsqd-http-address={other.http_address}",
        ) as nsqadmin,
    ):
        node_page = f"/nodes/{node.members[leader].http_address}"
        wait_until(
            lambda: "n1: leader, 3 of 3 in sync" in page(nsqadmin, "/nodes"), "the list of nodes"
        )
        assert 1 == page(nsqadmin, "/nodes").count("in sync</span>")
        text = page(nsqadmin, node_page)
        assert "Node n1 of cluster shop, epoch " in text
        assert f"3 of 3 members are in sync; {leader} leads since" in text
        assert f"{leader}</th><td>leader</td><td>yes</td>" in text
        assert f"{away}</th><td>follower</td><td>yes</td>" in text
        assert "<h2>Replication</h2>" not in page(nsqadmin, f"/nodes/{other.http_address}")

        node.kill(away)
        node.wait_in_sync(2)
        node.led_by.publish("orders", b"two", b"three")
        text = page(nsqadmin, node_page)
        assert f'{away}<span class="badge bad">disconnected</span>' in text
        assert "2 of 3 members are in sync" in text
        assert "<td>2 messages, " in text
        assert "n1: leader, 2 of 3 in sync" in page(nsqadmin, "/nodes")
