"""Rates from counters, with nodes that are added, removed or restarted."""

from penstock.admin_api.cluster import ClusterStats, Node, NodeStats
from penstock.admin_api.models import ChannelSummary, StatsResponse, TopicSummary
from penstock.tools.rates import SAMPLES_MAX, QueueMeter, QueueStats


def node(
    address: str, messages: int, *, depth: int = 0, in_flight: int = 0, started_at: int = 1
) -> NodeStats:
    channel = ChannelSummary(
        channel_name="c",
        depth=depth,
        backend_depth=depth // 2,
        in_flight_count=in_flight,
        deferred_count=0,
        message_count=messages,
        requeue_count=1,
        timeout_count=2,
        client_count=3,
    )
    topic = TopicSummary(
        topic_name="t", depth=0, backend_depth=0, message_count=messages, channels=[channel]
    )
    return NodeStats(
        Node(configured_address=address), StatsResponse(topics=[topic], start_time=started_at)
    )


def observed(*snapshots: list[NodeStats]) -> QueueStats:
    """The channel after snapshots taken every two seconds."""
    meter, flows = QueueMeter(), []
    for number, nodes in enumerate(snapshots, 1):
        flows = meter.observe(ClusterStats(number * 2.0, nodes, []))
    return next(flow for flow in flows if flow.channel == "c")


def test_there_is_no_rate_after_one_snapshot() -> None:
    assert observed([node("a", 100)]).rates is None


def test_rates_of_ingress_egress_and_finished() -> None:
    flow = observed([node("a", 100)], [node("a", 120, depth=8, in_flight=2)])
    assert flow.rates is not None

    assert (10.0, 6.0, 5.0) == (flow.rates.ingress, flow.rates.egress, flow.rates.finished)


def test_statistics_of_all_nodes_are_summed() -> None:
    flow = observed([node("a", 1, depth=4, in_flight=1), node("b", 2, depth=2)])

    assert (2, 6, 3, 1) == (flow.nodes, flow.depth, flow.disk_depth, flow.in_flight)
    assert (3, 2, 4, 6) == (flow.messages, flow.requeues, flow.timeouts, flow.clients)


def test_a_new_node_causes_no_peak() -> None:
    flow = observed([node("a", 0)], [node("a", 20), node("b", 1_000_000)])

    assert flow.rates is not None
    assert 10.0 == flow.rates.ingress


def test_a_removed_node_causes_no_gap() -> None:
    flow = observed([node("a", 0), node("b", 1_000_000)], [node("a", 20)])

    assert flow.rates is not None
    assert 10.0 == flow.rates.ingress


def test_a_node_that_was_restarted_has_no_rate_at_first() -> None:
    restarted = [
        [node("a", 5, depth=5, started_at=2)],
        [node("a", 9, depth=5, started_at=2)],
    ]
    first = observed([node("a", 100)], restarted[0])
    second = observed([node("a", 100)], *restarted)

    assert first.rates is not None
    assert second.rates is not None
    assert (0.0, 2.0) == (first.rates.ingress, second.rates.ingress)


def test_a_recreated_channel_counts_from_zero() -> None:
    flow = observed([node("a", 100)], [node("a", 6)])

    assert flow.rates is not None
    assert 3.0 == flow.rates.ingress


def test_a_rewound_channel_has_no_negative_rate() -> None:
    flow = observed([node("a", 100)], [node("a", 100, depth=100)])

    assert flow.rates is not None
    assert (0.0, 0.0) == (flow.rates.egress, flow.rates.finished)


def test_the_history_is_as_long_as_a_sparkline() -> None:
    flow = observed(*([node("a", 2 * number)] for number in range(SAMPLES_MAX + 10)))

    assert [1.0] * SAMPLES_MAX == [sample.ingress for sample in flow.history]
