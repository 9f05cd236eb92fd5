"""/stats of the running program, as JSON and as text."""

import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.net.tls.certificates import Authority

from penstock.net.tls import client_context
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

CLIENT_KEYS = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "topology_zone",
    "topology_region",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]

NO_LATENCY = {"count": 0, "percentiles": None}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.fixture
def empty_nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.fixture(scope="module")
def tracking() -> Iterator[NsqdProcess]:
    """An nsqd that tracks latencies."""
    flag = "--e2e-processing-latency-percentile"
    with run_nsqd(f"{flag}=0.5,1.0", f"{flag}=0.99") as process:
        yield process


def stats_of(nsqd: NsqdProcess, query: str = "") -> Any:
    return nsqd.http("GET", f"/stats?format=json&{query}").json()


def text_of(nsqd: NsqdProcess, query: str = "") -> str:
    return nsqd.http("GET", f"/stats?{query}").body.decode()


class TestEmpty:
    """Clients distinguish null, an empty list and a missing key."""

    def test_no_topics_are_an_empty_list_and_no_producers_null(
        self, empty_nsqd: NsqdProcess
    ) -> None:
        stats = stats_of(empty_nsqd)

        assert ["version", "health", "start_time", "topics", "memory", "producers"] == list(stats)
        assert ("1.3.0", "OK", [], None) == (
            stats["version"],
            stats["health"],
            stats["topics"],
            stats["producers"],
        )
        # In seconds: nsqd was started for these tests, within the last hour.
        assert time.time() - 3600 < stats["start_time"] <= time.time()

    def test_an_unknown_topic_is_null(self, nsqd: NsqdProcess, topic: str) -> None:
        stats = stats_of(nsqd, f"topic={topic}")

        assert (None, None) == (stats["topics"], stats["producers"])

    def test_a_known_topic_without_the_channel_is_an_empty_list(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        nsqd.post(f"/topic/create?topic={topic}")

        assert [] == stats_of(nsqd, f"topic={topic}&channel=unknown")["topics"]

    def test_channels_without_clients_have_an_empty_list(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")

        assert [] == nsqd.stats(topic, "c")["clients"]

    @pytest.mark.parametrize("value", ["false", "0"])
    def test_excluded_clients_are_null(self, nsqd: NsqdProcess, topic: str, value: str) -> None:
        nsqd.connect().call(commands.pub(topic, b"x"))
        nsqd.consumer(topic, "c")
        stats = stats_of(nsqd, f"topic={topic}&include_clients={value}")

        channel = stats["topics"][0]["channels"][0]
        assert (None, 1) == (channel["clients"], channel["client_count"])
        assert stats["producers"] is None

    @pytest.mark.parametrize("value", ["true", "1", "no", ""])
    def test_clients_are_included_unless_explicitly_excluded(
        self, nsqd: NsqdProcess, topic: str, value: str
    ) -> None:
        nsqd.consumer(topic, "c")
        stats = stats_of(nsqd, f"topic={topic}&include_clients={value}")

        assert 1 == len(stats["topics"][0]["channels"][0]["clients"])

    @pytest.mark.parametrize("value", ["false", "0"])
    def test_excluded_memory_is_left_out(self, nsqd: NsqdProcess, value: str) -> None:
        stats = stats_of(nsqd, f"include_mem={value}")

        assert ["version", "health", "start_time", "topics", "producers"] == list(stats)
        assert "Memory:" not in text_of(nsqd, f"include_mem={value}")


class TestTopics:
    def test_the_fields_of_a_topic(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/mpub?topic={topic}", b"one\nthree")

        expected = {
            "topic_name": topic,
            "channels": [],
            "depth": 2,
            "backend_depth": 0,
            "message_count": 2,
            "message_bytes": 8,
            "paused": False,
            "e2e_processing_latency": NO_LATENCY,
        }
        shown = nsqd.stats(topic)
        assert expected == shown
        assert list(expected) == list(shown)

    def test_the_fields_of_a_channel(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = nsqd.consumer(topic, "c", rdy=2)
        nsqd.post(f"/mpub?topic={topic}", b"1\n2\n3\n4")
        nsqd.post(f"/pub?topic={topic}&defer=60000", b"5")
        first, second = consumer.messages(2)
        consumer.send(commands.req(first.id, 60_000), commands.fin(second.id))
        third, fourth = consumer.messages(2)
        consumer.send(commands.req(third.id, 0))
        wait_until(lambda: 3 == nsqd.stats(topic, "c")["requeue_count"] + 1, "the requeues")
        consumer.message()
        consumer.send(commands.rdy(0))
        assert fourth.body == b"4"

        expected = {
            "channel_name": "c",
            "depth": 0,
            "backend_depth": 0,
            "in_flight_count": 2,
            "deferred_count": 2,
            "message_count": 5,
            "global_msg_count": 5,
            "requeue_count": 2,
            "timeout_count": 0,
            "client_count": 1,
            "clients": [],
            "paused": False,
            "e2e_processing_latency": NO_LATENCY,
        }
        shown = nsqd.stats(topic, "c")
        assert list(expected) == list(shown)
        assert expected == {**shown, "clients": []}

    def test_they_are_sorted_by_name(self, empty_nsqd: NsqdProcess) -> None:
        for topic in ("b", "a", "c", "B"):
            empty_nsqd.post(f"/topic/create?topic={topic}")
        for channel in ("z", "x", "y"):
            empty_nsqd.post(f"/channel/create?topic=a&channel={channel}")
        topics = stats_of(empty_nsqd)["topics"]

        assert ["B", "a", "b", "c"] == [each["topic_name"] for each in topics]
        assert ["x", "y", "z"] == [each["channel_name"] for each in topics[1]["channels"]]

    def test_one_channel_can_be_selected_in_all_topics(self, empty_nsqd: NsqdProcess) -> None:
        for topic, channel in (("a", "x"), ("a", "y"), ("b", "y"), ("c", "z")):
            empty_nsqd.post(f"/topic/create?topic={topic}")
            empty_nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        topics = stats_of(empty_nsqd, "channel=y")["topics"]

        assert ["a", "b"] == [each["topic_name"] for each in topics]
        assert [["y"], ["y"]] == [
            [channel["channel_name"] for channel in each["channels"]] for each in topics
        ]


class TestClients:
    def test_the_fields_of_a_consumer(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = nsqd.connect()
        consumer.identify(
            client_id="id",
            hostname="host",
            user_agent="agent/1",
            sample_rate=99,
            topology_zone="z",
            topology_region="r",
        )
        consumer.subscribe(topic, "c", rdy=5)
        wait_until(lambda: nsqd.stats(topic, "c")["clients"][0]["ready_count"] == 5, "RDY")
        (client,) = nsqd.stats(topic, "c")["clients"]

        assert CLIENT_KEYS == list(client)
        assert abs(client.pop("connect_ts") - time.time()) < 3600
        assert client.pop("remote_address").startswith("127.0.0.1:")
        assert {
            "client_id": "id",
            "hostname": "host",
            "version": "V2",
            "state": 3,
            "ready_count": 5,
            "in_flight_count": 0,
            "message_count": 0,
            "finish_count": 0,
            "requeue_count": 0,
            "sample_rate": 99,
            "deflate": False,
            "snappy": False,
            "user_agent": "agent/1",
            "topology_zone": "z",
            "topology_region": "r",
            "tls": False,
            "tls_cipher_suite": "",
            "tls_version": "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
        } == client

    @pytest.mark.parametrize(
        ("version", "suites", "shown"),
        [
            (
                ssl.TLSVersion.TLSv1_2,
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS1.2"),
            ),
            (ssl.TLSVersion.TLSv1_3, None, ("TLS_AES_256_GCM_SHA384", "TLS1.3")),
        ],
    )
    def test_the_fields_of_an_encrypted_connection(
        self, tmp_path: Path, version: ssl.TLSVersion, suites: str | None, shown: tuple[str, str]
    ) -> None:
        authority = Authority(tmp_path)
        server = authority.issue("server")
        context = client_context(root_ca=authority.root_ca)
        context.minimum_version = context.maximum_version = version
        if suites is not None:
            context.set_ciphers(suites)
        with run_nsqd(f"--tls-cert={server.cert}", f"--tls-key={server.key}") as nsqd:
            consumer = nsqd.connect()
            consumer.identify(tls_v1=True)
            consumer.start_tls(context)
            consumer.send(commands.sub("t", "c"))
            assert [b"OK", b"OK"] == [consumer.response(), consumer.response()]
            nsqd.consumer("t", "c")
            clients = nsqd.stats("t", "c")["clients"]

        assert [CLIENT_KEYS, CLIENT_KEYS] == [list(client) for client in clients]
        about_tls = CLIENT_KEYS[CLIENT_KEYS.index("tls") :]
        assert [(True, *shown, "", True), (False, "", "", "", False)] == [
            tuple(client[key] for key in about_tls) for client in clients
        ]

    def test_actions_of_a_consumer_are_counted(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = nsqd.consumer(topic, "c", rdy=1)
        nsqd.post(f"/mpub?topic={topic}", b"1\n2\n3")
        consumer.send(commands.fin(consumer.message().id))
        consumer.send(commands.req(consumer.message().id, 60_000))
        consumer.message()

        (client,) = nsqd.stats(topic, "c")["clients"]
        counted = ("message_count", "finish_count", "requeue_count", "in_flight_count")
        assert [3, 1, 1, 1] == [client[key] for key in counted]

    def test_a_client_that_has_published_is_a_producer(self, empty_nsqd: NsqdProcess) -> None:
        producer, silent = empty_nsqd.connect(), empty_nsqd.connect()
        silent.identify(client_id="silent")
        producer.identify(client_id="p", hostname="h", user_agent="ua/1")
        producer.call(commands.pub("t", b"x"))
        producer.call(commands.mpub("t", [b"x", b"y"]))
        (client,) = stats_of(empty_nsqd)["producers"]

        keys = CLIENT_KEYS.copy()
        keys.insert(keys.index("tls"), "pub_counts")
        assert keys == list(client)
        assert ("p", 0) == (client["client_id"], client["state"])
        assert [{"topic": "t", "count": 3}] == client["pub_counts"]

    def test_one_topic_of_a_producer_is_shown(self, empty_nsqd: NsqdProcess) -> None:
        producer = empty_nsqd.connect()
        producer.call(commands.pub("a", b"x"))
        producer.call(commands.pub("b", b"x"))
        empty_nsqd.post("/topic/create?topic=c")

        def shown(query: str) -> Any:
            (client,) = stats_of(empty_nsqd, query)["producers"]
            return client.get("pub_counts", "left out")

        assert [{"topic": "a", "count": 1}] == shown("")
        assert [{"topic": "b", "count": 1}] == shown("topic=b")
        assert "left out" == shown("topic=c")

    def test_a_consumer_that_publishes_is_both(self, empty_nsqd: NsqdProcess) -> None:
        client = empty_nsqd.connect()
        client.subscribe("t", "c")
        client.call(commands.pub("t", b"x"))
        stats = stats_of(empty_nsqd)

        assert stats["topics"][0]["channels"][0]["clients"] == stats["producers"]

    def test_a_disconnected_client_is_not_shown(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = nsqd.consumer(topic, "c")
        consumer.call(commands.pub(topic, b"x"))
        consumer.close()

        wait_until(lambda: [] == nsqd.stats(topic, "c")["clients"], "the consumer to leave")


def test_memory_has_the_names_of_the_reference(nsqd: NsqdProcess) -> None:
    memory = stats_of(nsqd)["memory"]

    assert [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ] == list(memory)
    assert all(isinstance(value, int) and value >= 0 for value in memory.values())
    assert 1_000_000 < memory["heap_in_use_bytes"] < 200_000_000
    assert 10_000 < memory["heap_objects"]
    assert 0 < memory["gc_pause_usec_95"] <= memory["gc_pause_usec_99"]
    assert memory["gc_pause_usec_99"] <= memory["gc_pause_usec_100"]
    assert 0 < memory["gc_total_runs"]


RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)"

EMPTY_PAGE = rf"""nsqd v1\.3\.0 \(built w/penstock[\d.]+\)
start_time {RFC3339}
uptime (\d+m)?[\d.]+m?s

Health: OK

Memory:
   heap_objects             \t\d+
   heap_idle_bytes          \t\d+
   heap_in_use_bytes        \t\d+
   heap_released_bytes      \t\d+
   gc_pause_usec_100        \t\d+
   gc_pause_usec_99         \t\d+
   gc_pause_usec_95         \t\d+
   next_gc_bytes            \t\d+
   gc_total_runs            \t\d+

Topics: None

Producers: None
"""

BUSY_PAGE = r"""
Topics:
   \[a              \] depth: 0     be-depth: 0     msgs: 2        e2e%: 
   \*P \[a-channel                \] depth: 2     be-depth: 0     inflt: 0    def: 0    re-q: 0     timeout: 0     msgs: 2        e2e%: 

\*P \[a-topic-with-a-long-name\] depth: 1     be-depth: 0     msgs: 1        e2e%: 
      \[c                        \] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     timeout: 0     msgs: 0        e2e%: 
        \[V2 h:\d+ ua/1         ?\] state: 3 inflt: 0    rdy: 1    fin: 0        re-q: 0        msgs: 0        connected: \d+s

Producers:
   \[V2 p:\d+ producer/1   ?\] msgs: 2        topics: a=2 connected: \d+s
"""  # noqa: E501, W291


class TestText:
    def test_without_topics(self, empty_nsqd: NsqdProcess) -> None:
        page = text_of(empty_nsqd)

        assert re.fullmatch(EMPTY_PAGE, page), page

    def test_with_topics_channels_and_clients(self, empty_nsqd: NsqdProcess) -> None:
        empty_nsqd.post("/topic/create?topic=a")
        empty_nsqd.post("/channel/create?topic=a&channel=a-channel")
        empty_nsqd.post("/channel/pause?topic=a&channel=a-channel")
        producer = empty_nsqd.connect()
        producer.identify(hostname="p", user_agent="producer/1")
        producer.call(commands.mpub("a", [b"1", b"2"]))
        consumer = empty_nsqd.connect()
        consumer.identify(hostname="h", user_agent="ua/1")
        consumer.subscribe("a-topic-with-a-long-name", "c", rdy=1)
        empty_nsqd.post("/topic/pause?topic=a-topic-with-a-long-name")
        empty_nsqd.post("/pub?topic=a-topic-with-a-long-name", b"x")
        wait_until(lambda: "rdy: 1 " in text_of(empty_nsqd), "RDY")
        page = text_of(empty_nsqd, "include_mem=false").partition("Health: OK\n")[2]

        assert re.fullmatch(BUSY_PAGE, page), page

    def test_of_one_topic(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        page = text_of(nsqd, f"topic={topic}")

        assert [topic] == re.findall(r"^   \[(\S+) *\] depth:", page, re.MULTILINE)

    def test_any_other_format_is_text(self, nsqd: NsqdProcess) -> None:
        assert text_of(nsqd, "format=JSON").startswith("nsqd v1.3.0 ")


class TestLatency:
    """From publish to FIN, if quantiles are configured."""

    def test_a_topic_without_channels_has_null(self, tracking: NsqdProcess, topic: str) -> None:
        tracking.publish(topic, b"x")

        assert NO_LATENCY == tracking.stats(topic)["e2e_processing_latency"]

    def test_idle_channels_have_zeros_the_largest_quantile_first(
        self, tracking: NsqdProcess, topic: str
    ) -> None:
        tracking.consumer(topic, "c")
        answer = tracking.http("GET", f"/stats?format=json&topic={topic}").body

        zeros = (
            b'"e2e_processing_latency":{"count":0,"percentiles":[{"quantile":1,"value":0},'
            b'{"quantile":0.99,"value":0},{"quantile":0.5,"value":0}]}'
        )
        assert 2 == answer.count(zeros)
        assert 2 == text_of(tracking, f"topic={topic}").count("e2e%: 0.0ns, 0.0ns, 0.0ns\n")

    def test_a_topic_has_those_of_all_its_channels(self, tracking: NsqdProcess, topic: str) -> None:
        consumers = [tracking.consumer(topic, name, rdy=10) for name in ("quick", "slow")]
        tracking.publish(topic, b"a", b"b")
        quick, slow = (consumer.messages(2) for consumer in consumers)
        consumers[0].send(commands.fins([message.id for message in quick]))
        wait_until(lambda: tracking.shows(topic, "quick", in_flight_count=0), "the quick ones' FIN")
        wait_until(lambda: time.time_ns() - slow[1].timestamp_ns > 200_000_000, "time to pass")
        consumers[1].send(commands.fin(slow[0].id))
        wait_until(lambda: tracking.shows(topic, "slow", in_flight_count=1), "the slow one's FIN")

        stats = tracking.stats(topic)
        shown = [stats, *stats["channels"]]
        latencies = [each["e2e_processing_latency"] for each in shown]
        assert [3, 2, 1] == [each["count"] for each in latencies]
        whole, quick_values, slow_values = (
            [percentile["value"] for percentile in each["percentiles"]] for each in latencies
        )
        assert [slow_values[0], slow_values[1]] == whole[:2]
        assert whole[2] == quick_values[0] < slow_values[2]
        assert 198_000_000 < slow_values[2] < 10_000_000_000

    def test_the_text_has_suitable_units(self, tracking: NsqdProcess, topic: str) -> None:
        consumer = tracking.consumer(topic, "c")
        tracking.publish(topic, b"a")
        consumer.send(commands.fin(consumer.message().id))
        wait_until(lambda: tracking.shows(topic, "c", in_flight_count=0), "the FIN")

        value = r"\d{1,3}\.\d(us|ms|s)"
        assert 2 == len(
            re.findall(rf"e2e%: {value}, {value}, {value}\n", text_of(tracking, f"topic={topic}"))
        )
