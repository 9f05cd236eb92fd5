"""Status of channels, and search results."""

import pytest

from penstock.admin_api.cluster import Node
from penstock.nsqadmin.metrics_store import MetricsSample
from penstock.nsqadmin.views import ChannelRow, SearchMatch, find
from penstock.nsqadmin.watcher import ClusterState


@pytest.mark.parametrize(
    ("channel", "published", "finished", "lag_status"),
    [
        (ChannelRow("t", "c"), 5, 5, "up to date"),
        (ChannelRow("t", "c", depth=600, clients=1), 5, 15, "catching up, 1m left"),
        (ChannelRow("t", "c", depth=600, clients=1), 15, 5, "falling behind"),
        (ChannelRow("t", "c", depth=600, clients=1), 5, 5, "not catching up"),
        (ChannelRow("t", "c", depth=10**9, clients=1), 0, 1, "not catching up"),
        (ChannelRow("t", "c", depth=600), 0, 0, "no consumers"),
        (ChannelRow("t", "c", depth=600, mode="commit"), 0, 10, "catching up, 1m left"),
        (ChannelRow("t", "c", depth=600, is_paused=True), 5, 0, "paused"),
    ],
)
def test_lag_status_of_a_channel(
    channel: ChannelRow, published: float, finished: float, lag_status: str
) -> None:
    channel.metrics = MetricsSample(published=published, finished=finished)

    assert lag_status == channel.lag_status


def test_names_that_start_with_the_word_are_listed_first() -> None:
    node = Node(hostname="web", broadcast_address="10.0.0.1", tcp_port=1, http_port=2, version="")
    state = ClusterState(0.0, ["web.orders", "orders", "orders.old"], [node])

    assert [
        SearchMatch("topic", "orders"),
        SearchMatch("topic", "orders.old"),
        SearchMatch("topic", "web.orders"),
    ] == find(state, "ord")
    assert [SearchMatch("topic", "web.orders")] == find(state, "ord WEB")
    assert SearchMatch("node", "", node="10.0.0.1:2") in find(state, "web")
    assert [] == find(state, "  ")
