"""Rates, ring buffers and limits of the metrics store."""

import pytest

from penstock.admin_api.cluster import Node, NodeStats
from penstock.admin_api.models import ChannelSummary, StatsResponse, TopicSummary
from penstock.nsqadmin.metrics_store import CLUSTER, MetricsStore, channel_key, node_key, topic_key


def answer(
    published: int,
    depth: int = 0,
    *,
    port: int = 1,
    start_time: int = 1,
    requeued: int = 0,
    topic: str = "t",
) -> NodeStats:
    node = Node(hostname="h", broadcast_address="h", tcp_port=0, http_port=port, version="1.3.0")
    channel = ChannelSummary(
        channel_name="c", message_count=published, depth=depth, requeue_count=requeued
    )
    stats = TopicSummary(topic_name=topic, message_count=published, channels=[channel])
    return NodeStats(node, StatsResponse(topics=[stats], start_time=start_time))


TOPIC, CHANNEL = topic_key("t"), channel_key("t", "c")


class TestRates:
    def test_a_rate_is_the_sum_of_the_increases_of_all_nodes(self) -> None:
        metrics_store = MetricsStore(1.0)
        metrics_store.add_sample([answer(10, 2), answer(100, port=2)], 50.0)
        metrics_store.add_sample([answer(30, 12, requeued=4), answer(120, port=2)], 52.0)

        assert 20.0 == metrics_store.latest(TOPIC).published
        assert 20.0 == metrics_store.latest(CLUSTER).published
        assert 10.0 == metrics_store.latest(node_key("h:2")).published
        assert 15.0 == metrics_store.latest(CHANNEL).finished
        assert 2.0 == metrics_store.latest(CHANNEL).requeued
        assert 12.0 == metrics_store.latest(CHANNEL).depth

    def test_the_first_sample_has_no_rates(self) -> None:
        metrics_store = MetricsStore(1.0)
        metrics_store.add_sample([answer(1_000_000)], 50.0)

        assert 0.0 == metrics_store.latest(TOPIC).published

    @pytest.mark.parametrize(
        "later",
        [
            pytest.param(answer(5_000, port=9), id="another node joins"),
            pytest.param(answer(5_000, start_time=2), id="a node was restarted"),
        ],
    )
    def test_a_new_or_restarted_node_causes_no_peak(self, later: NodeStats) -> None:
        metrics_store = MetricsStore(1.0)
        metrics_store.add_sample([answer(10)], 50.0)
        metrics_store.add_sample([later], 51.0)

        assert 0.0 == metrics_store.latest(TOPIC).published

    def test_a_recreated_topic_counts_from_zero(self) -> None:
        metrics_store = MetricsStore(1.0)
        metrics_store.add_sample([answer(1000)], 50.0)
        metrics_store.add_sample([answer(7)], 51.0)

        assert 7.0 == metrics_store.latest(TOPIC).published

    def test_rewinding_a_channel_causes_no_negative_rate(self) -> None:
        metrics_store = MetricsStore(1.0)
        metrics_store.add_sample([answer(10, 0)], 50.0)
        metrics_store.add_sample([answer(10, 500)], 51.0)

        assert 0.0 == metrics_store.latest(CHANNEL).finished


class TestRings:
    def test_ten_minutes_are_fine_and_the_hour_is_coarse(self) -> None:
        metrics_store = MetricsStore(5.0)
        for tick in range(1000):
            metrics_store.add_sample([answer(10 * tick)], 1000.0 + 5 * tick)

        fine = metrics_store.series(TOPIC, ["published"], fine=True)
        coarse = metrics_store.series(TOPIC, ["published", "depth"], fine=False)

        assert [5.0] * 119 == [b - a for a, b in zip(fine["time"], fine["time"][1:], strict=False)]
        assert 1000.0 + 5 * 999 == fine["time"][-1]
        assert [2.0] * 120 == fine["published"]
        assert (120, 30.0) == (len(coarse["time"]), coarse["time"][1] - coarse["time"][0])
        assert [2.0] * 120 == coarse["published"]
        assert [0.0] * 120 == coarse["depth"]

    def test_partly_filled_rings_return_only_stored_samples(self) -> None:
        metrics_store = MetricsStore(5.0)
        assert {"time": [], "depth": []} == metrics_store.series(TOPIC, ["depth"], fine=True)

        metrics_store.add_sample([answer(1, 3)], 50.0)
        metrics_store.add_sample([answer(1, 4)], 55.0)

        assert [3.0, 4.0] == metrics_store.series(CHANNEL, ["depth"], fine=True)["depth"]
        assert [4.0] == metrics_store.recent(CHANNEL, "depth", 1)

    def test_a_missing_key_counts_zero_and_is_deleted_after_an_hour(self) -> None:
        metrics_store = MetricsStore(5.0)
        metrics_store.add_sample([answer(1, 3)], 50.0)
        metrics_store.add_sample([answer(1, 3, topic="other")], 55.0)

        assert 0.0 == metrics_store.latest(CHANNEL).depth
        assert [3.0, 0.0] == metrics_store.series(CHANNEL, ["depth"], fine=True)["depth"]

        for tick in range(2, 1000):
            metrics_store.add_sample([answer(1, topic="other")], 50.0 + 5 * tick)
        assert CHANNEL not in metrics_store._rings_by_key

    def test_the_number_of_keys_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.nsqadmin.metrics_store.KEYS_MAX", 4)
        metrics_store = MetricsStore(5.0)
        metrics_store.add_sample([answer(1, topic=f"t{number}") for number in range(10)], 50.0)

        assert 4 == len(metrics_store._rings_by_key)
