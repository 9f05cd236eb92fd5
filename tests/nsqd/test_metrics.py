"""/metrics of the running program, parsed by Prometheus' own parser."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.fakes import Host

from penstock.broker.settings import BrokerSettings
from penstock.common.bug_reports import BugReports
from penstock.common.clock import SECOND_NS
from penstock.common.logs import Logger
from penstock.net.prometheus import Histogram
from penstock.nsqd.metrics import FAMILIES, MetricsSource, metrics
from penstock.nsqd.process_metrics import ErrorCounters, GcPauses
from penstock.nsqd.replication_metrics import REPLICATION_FAMILIES
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until

QUANTILES = ("1.0", "0.5")

# The keys of /stats and their metrics.
OF_TOPICS = {
    "depth": "nsqd_topic_depth",
    "backend_depth": "nsqd_topic_backend_depth",
    "message_count": "nsqd_topic_messages_total",
    "message_bytes": "nsqd_topic_message_bytes_total",
    "paused": "nsqd_topic_paused",
}
OF_CHANNELS = {
    "depth": "nsqd_channel_depth",
    "backend_depth": "nsqd_channel_backend_depth",
    "in_flight_count": "nsqd_channel_in_flight",
    "deferred_count": "nsqd_channel_deferred",
    "message_count": "nsqd_channel_messages_total",
    "requeue_count": "nsqd_channel_requeues_total",
    "timeout_count": "nsqd_channel_timeouts_total",
    "client_count": "nsqd_channel_clients",
    "paused": "nsqd_channel_paused",
}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    flags = ("--sync-every=1", f"--e2e-processing-latency-percentile={','.join(QUANTILES)}")
    with run_nsqd(*flags) as process:
        yield process


def families_of(nsqd: NsqdProcess) -> list[Metric]:
    return list(text_string_to_metric_families(nsqd.http("GET", "/metrics").body.decode()))


def values_of(nsqd: NsqdProcess) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    samples = [sample for family in families_of(nsqd) for sample in family.samples]
    values = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert len(samples) == len(values), "a sample is there twice"
    return values


def make_traffic(nsqd: NsqdProcess, topic: str) -> None:
    """Leaves messages in every state."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.post(f"/channel/create?topic={topic}&channel=paused")
    nsqd.post(f"/channel/pause?topic={topic}&channel=paused")
    consumer = nsqd.consumer(topic, "c", rdy=3)
    producer = nsqd.connect()
    for body in (b"finished", b"requeued", b"kept", b"queued"):
        producer.call(commands.pub(topic, body))
    producer.call(commands.dpub(topic, 60_000, b"deferred"))
    finished, requeued, _ = consumer.messages(3)
    consumer.send(commands.rdy(1), commands.fin(finished.id), commands.req(requeued.id, 60_000))
    nsqd.post(f"/topic/pause?topic={topic}")
    producer.call(commands.pub(topic, b"held"))
    figures = {"depth": 1, "in_flight_count": 1, "deferred_count": 2, "requeue_count": 1}
    wait_until(lambda: nsqd.shows(topic, "c", **figures), "the messages to be where they belong")


def test_topics_and_channels_have_the_values_of_stats(nsqd: NsqdProcess, topic: str) -> None:
    make_traffic(nsqd, topic)
    stats, values = nsqd.stats(topic), values_of(nsqd)

    assert {name: stats[name] for name in OF_TOPICS} == {
        name: values[metric, topic] for name, metric in OF_TOPICS.items()
    }
    for channel in stats["channels"]:
        assert {name: channel[name] for name in OF_CHANNELS} == {
            name: values[metric, topic, channel["channel_name"]]
            for name, metric in OF_CHANNELS.items()
        }
    named = {"topic_name", "channels", "e2e_processing_latency"}
    assert stats.keys() - named == OF_TOPICS.keys()
    channel = stats["channels"][0]
    assert channel["global_msg_count"] == 3
    assert 3 == values["nsqd_channel_deliveries_total", topic, "c", "global"]
    assert 0 == values["nsqd_channel_deliveries_total", topic, "paused", "global"]
    named = {"channel_name", "clients", "e2e_processing_latency", "global_msg_count"}
    assert channel.keys() - named == OF_CHANNELS.keys()


def test_latencies_are_those_of_stats_in_seconds(nsqd: NsqdProcess, topic: str) -> None:
    make_traffic(nsqd, topic)
    stats, values = nsqd.stats(topic), values_of(nsqd)

    shown: dict[tuple[str, ...], Any] = {
        ("nsqd_topic_latency_seconds", topic): stats,
        ("nsqd_channel_latency_seconds", topic, "c"): stats["channels"][0],
    }
    for name, figures in shown.items():
        percentiles = figures["e2e_processing_latency"]["percentiles"]
        assert [each["value"] / 1e9 for each in percentiles] == [
            values[*name, quantile] for quantile in QUANTILES
        ]
        assert all(each["value"] > 0 for each in percentiles)
    # No message of it has been finished.
    assert ("nsqd_channel_latency_seconds", topic, "paused", "0.5") not in values


def test_every_family_is_shown_once_with_its_kind_and_help(nsqd: NsqdProcess) -> None:
    page = nsqd.http("GET", "/metrics").body.decode()

    heads = "".join(re.findall(r"^# .*\n", page, re.MULTILINE))
    assert "".join(family.head for family in FAMILIES) == heads


def test_samples_have_the_labels_of_their_family(nsqd: NsqdProcess, topic: str) -> None:
    make_traffic(nsqd, topic)
    declared = {family.name.removesuffix("_total"): family for family in FAMILIES}

    for family in families_of(nsqd):
        for sample in family.samples:
            labels = tuple(label for label in sample.labels if label != "le")
            assert declared[family.name].labels == labels


def test_the_log_and_its_fsyncs_are_measured(nsqd: NsqdProcess, topic: str) -> None:
    before = values_of(nsqd)["nsqd_fsync_seconds_count",]
    nsqd.publish(topic, b"x" * 1000)
    values = values_of(nsqd)

    assert values["nsqd_fsync_seconds_count",] > before
    assert values["nsqd_fsync_seconds_sum",] > 0
    assert 1000 < values["nsqd_topic_log_bytes", topic] < 1200
    assert 1 == values["nsqd_topic_log_segments", topic]


def test_with_sync_every_0_only_the_timeout_causes_an_fsync(topic: str) -> None:
    messages = b"\n".join([b"x"] * 5000)
    with run_nsqd("--sync-every=0", "--sync-timeout=1h") as nsqd:
        nsqd.post(f"/mpub?topic={topic}", messages)
        assert 0 == values_of(nsqd)["nsqd_fsync_seconds_count",]
    with run_nsqd("--sync-every=0", "--sync-timeout=50ms") as nsqd:
        nsqd.post(f"/mpub?topic={topic}", messages)
        wait_until(lambda: values_of(nsqd)["nsqd_fsync_seconds_count",] > 0, "an fsync")


def test_an_ephemeral_topic_has_no_log(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(f"{topic}#ephemeral", b"x")
    values = values_of(nsqd)

    assert 1 == values["nsqd_topic_messages_total", f"{topic}#ephemeral"]
    assert ("nsqd_topic_log_bytes", f"{topic}#ephemeral") not in values


def test_metrics_of_the_process(nsqd: NsqdProcess, topic: str) -> None:
    with nsqd.connect() as producer:
        before = values_of(nsqd)
        producer.call(commands.pub(topic, b"x"))
        values = values_of(nsqd)

    assert 1 == values["nsqd_healthy",]
    assert before["nsqd_producers",] + 1 == values["nsqd_producers",] <= values["nsqd_connections",]
    assert 1 == values["nsqd_http_connections",]
    assert nsqd.http("GET", "/info").json()["start_time"] == int(
        values["process_start_time_seconds",]
    )
    assert 1e6 < values["process_resident_memory_bytes",]
    assert 0 < before["process_cpu_seconds_total",] <= values["process_cpu_seconds_total",]
    wait_until(lambda: values_of(nsqd)["nsqd_loop_lag_seconds_count",] > 0, "a sample of the loop")


def test_draining_and_connections_to_nsqlookupds() -> None:
    with (
        run_nsqlookupd() as there,
        run_nsqd(
            f"--lookupd-tcp-address={there.tcp_address}", "--lookupd-tcp-address=127.0.0.1:1"
        ) as nsqd,
    ):
        name = "nsqd_lookupd_connected"
        wait_until(lambda: values_of(nsqd)[name, there.tcp_address] == 1, "nsqd to register")
        assert 0 == values_of(nsqd)[name, "127.0.0.1:1"]

        assert 0 == values_of(nsqd)["nsqd_draining",]
        nsqd.post("/pub?topic=kept", b"so that it does not stop at once")
        nsqd.post("/drain")
        assert 1 == values_of(nsqd)["nsqd_draining",]


def test_http_requests_are_counted_by_status(nsqd: NsqdProcess) -> None:
    before = values_of(nsqd)
    for _ in range(3):
        nsqd.http("GET", "/no-such-thing")
    nsqd.http("GET", "/ping")
    after = values_of(nsqd)

    name = "nsqd_http_requests_total"
    assert 3 == after[name, "404"] - before.get((name, "404"), 0)
    assert 2 == after[name, "200"] - before[name, "200"]  # the first scrape, and the ping


def test_malformed_requests_are_counted(nsqd: NsqdProcess) -> None:
    host, _, port = nsqd.http_address.partition(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(b"\x16\x03\x01 this is no request\r\n\r\n")
        peer.recv(1)

    assert values_of(nsqd)["nsqd_http_refusals_total", "400"] >= 1


def test_topics_and_channels_can_be_deleted_during_a_scrape() -> None:
    host = Host(BrokerSettings(latency_window_ns=SECOND_NS))
    for topic in ("a", "b"):
        host.channel(topic, "c")
    shown: list[str] = []
    with closing(GcPauses()) as gc_pauses:
        source = MetricsSource(
            broker=host.broker,
            clients=(),
            gc_pauses=gc_pauses,
            refusals=ErrorCounters(),
            bugs=BugReports(Logger("")),
            lookupds=dict,
            loop_lag=Histogram(()),
            sync_seconds=Histogram(()),
            unresponsive_shards=int,
            quantiles=(0.5,),
            started_at_ns=0,
        )
        for family, samples in metrics(source):
            shown.append(family.name)
            for at, _ in enumerate(samples):
                if (family.name, at) == ("nsqd_topic_depth", 0):
                    host.broker.delete_topic("b")
                if (family.name, at) == ("nsqd_channel_depth", 0):
                    host.broker.delete_channel(host.broker.topic("a"), "c")

    assert [family.name for family in FAMILIES] == shown
    assert {"a"} == host.broker.topics.keys()
    assert not host.broker.topics["a"].channels


def test_the_documentation_lists_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(?:nsqd|process)_.*$", page, re.MULTILINE)

    assert [
        f"| `{family.name}` | {family.kind} "
        f"| {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in (*FAMILIES, *REPLICATION_FAMILIES)
    ] == rows


def test_the_time_of_the_last_commit_is_shown_for_channels_in_commit_mode() -> None:
    def last_commits(nsqd: NsqdProcess) -> dict[str, float]:
        return {
            key[2]: value
            for key, value in values_of(nsqd).items()
            if key[0] == "nsqd_channel_last_commit_timestamp_seconds"
        }

    with run_nsqd() as nsqd:
        nsqd.publish("t", b"x")
        nsqd.post("/channel/create?topic=t&channel=consumed")
        nsqd.post("/channel/create?topic=t&channel=spark&from=earliest&mode=commit")
        at_first = last_commits(nsqd)
        seq = nsqd.http("GET", "/topic/log?topic=t").json()["next_seq"]
        before = time.time()
        nsqd.post(f"/channel/commit?topic=t&channel=spark&seq={seq}")
        committed = last_commits(nsqd)
        nsqd.restart()
        restarted = last_commits(nsqd)
        nsqd.post("/channel/mode?topic=t&channel=spark&mode=consume")

        assert [{"spark"}] * 3 == [set(each) for each in (at_first, committed, restarted)]
        assert at_first["spark"] <= before <= committed["spark"] <= restarted["spark"]
        assert {} == last_commits(nsqd)
