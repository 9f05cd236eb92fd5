"""The last hour, kept in little."""

import pytest

from penstock.admin_api.cluster import Node, NodeStats
from penstock.admin_api.models import ChannelSummary, StatsResponse, TopicSummary
from penstock.nsqadmin.metrics_store import CLUSTER, Chronicle, channel_key, node_key, topic_key


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
    def test_they_are_what_all_nodes_counted_between_two_samples(self) -> None:
        chronicle = Chronicle(1.0)
        chronicle.observe([answer(10, 2), answer(100, port=2)], 50.0)
        chronicle.observe([answer(30, 12, requeued=4), answer(120, port=2)], 52.0)

        assert 20.0 == chronicle.latest(TOPIC).published
        assert 20.0 == chronicle.latest(CLUSTER).published
        assert 10.0 == chronicle.latest(node_key("h:2")).published
        assert 15.0 == chronicle.latest(CHANNEL).finished
        assert 2.0 == chronicle.latest(CHANNEL).requeued
        assert 12.0 == chronicle.latest(CHANNEL).depth

    def test_the_first_sample_has_none(self) -> None:
        chronicle = Chronicle(1.0)
        chronicle.observe([answer(1_000_000)], 50.0)

        assert 0.0 == chronicle.latest(TOPIC).published

    @pytest.mark.parametrize(
        "later",
        [
            pytest.param(answer(5_000, port=9), id="another node joins"),
            pytest.param(answer(5_000, start_time=2), id="a node was restarted"),
        ],
    )
    def test_a_past_that_was_not_seen_makes_no_peak(self, later: NodeStats) -> None:
        chronicle = Chronicle(1.0)
        chronicle.observe([answer(10)], 50.0)
        chronicle.observe([later], 51.0)

        assert 0.0 == chronicle.latest(TOPIC).published

    def test_a_topic_that_is_made_anew_counts_from_its_start(self) -> None:
        chronicle = Chronicle(1.0)
        chronicle.observe([answer(1000)], 50.0)
        chronicle.observe([answer(7)], 51.0)

        assert 7.0 == chronicle.latest(TOPIC).published

    def test_what_is_emptied_or_rewound_has_no_rate_below_zero(self) -> None:
        chronicle = Chronicle(1.0)
        chronicle.observe([answer(10, 0)], 50.0)
        chronicle.observe([answer(10, 500)], 51.0)

        assert 0.0 == chronicle.latest(CHANNEL).finished


class TestRings:
    def test_the_minutes_are_fine_and_the_hour_is_coarse(self) -> None:
        chronicle = Chronicle(5.0)
        for tick in range(1000):
            chronicle.observe([answer(10 * tick)], 1000.0 + 5 * tick)

        fine = chronicle.series(TOPIC, ["published"], fine=True)
        coarse = chronicle.series(TOPIC, ["published", "depth"], fine=False)

        assert [5.0] * 119 == [b - a for a, b in zip(fine["time"], fine["time"][1:], strict=False)]
        assert 1000.0 + 5 * 999 == fine["time"][-1]
        assert [2.0] * 120 == fine["published"]
        assert (120, 30.0) == (len(coarse["time"]), coarse["time"][1] - coarse["time"][0])
        assert [2.0] * 120 == coarse["published"]
        assert [0.0] * 120 == coarse["depth"]

    def test_before_they_are_full_they_have_what_there_is(self) -> None:
        chronicle = Chronicle(5.0)
        assert {"time": [], "depth": []} == chronicle.series(TOPIC, ["depth"], fine=True)

        chronicle.observe([answer(1, 3)], 50.0)
        chronicle.observe([answer(1, 4)], 55.0)

        assert [3.0, 4.0] == chronicle.series(CHANNEL, ["depth"], fine=True)["depth"]
        assert [4.0] == chronicle.trail(CHANNEL, "depth", 1)

    def test_what_is_gone_counts_nothing_and_is_forgotten_in_the_end(self) -> None:
        chronicle = Chronicle(5.0)
        chronicle.observe([answer(1, 3)], 50.0)
        chronicle.observe([answer(1, 3, topic="other")], 55.0)

        assert 0.0 == chronicle.latest(CHANNEL).depth
        assert [3.0, 0.0] == chronicle.series(CHANNEL, ["depth"], fine=True)["depth"]

        for tick in range(2, 1000):
            chronicle.observe([answer(1, topic="other")], 50.0 + 5 * tick)
        assert CHANNEL not in chronicle._records

    def test_there_is_a_limit_to_how_many_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.nsqadmin.metrics_store.KEYS_MAX", 4)
        chronicle = Chronicle(5.0)
        chronicle.observe([answer(1, topic=f"t{number}") for number in range(10)], 50.0)

        assert 4 == len(chronicle._records)
