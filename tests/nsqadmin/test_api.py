"""The HTTP API of nsqadmin, against real daemons."""

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.nsqadmin.conftest import Cluster
from tests.nsqadmin.fake_servers import not_http_server, stock_nsqd_proxy, unused_address

from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

TOPIC_KEYS = [
    *("node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth"),
    *("message_count", "delivery_msg_count", "nodes", "channels", "paused"),
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"),
    *("client_count", "nodes", "clients", "paused", "e2e_processing_latency"),
]
CLIENT_KEYS = [
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
]
NODE_KEYS = [
    *("remote_addresses", "remote_address", "hostname", "broadcast_address", "tcp_port"),
    *("http_port", "version", "topics", "out_of_date"),
]


def get(nsqadmin: NsqadminProcess, path: str) -> Any:
    answer = nsqadmin.http("GET", path)
    assert answer.status == 200, answer
    return answer.json()


def change(nsqadmin: NsqadminProcess, method: str, path: str, **body: str) -> tuple[int, Any]:
    answer = nsqadmin.http(method, path, json.dumps(body).encode() if body else b"")
    return answer.status, answer.json()


DONE = (200, {"message": ""})


class TestReading:
    def test_topics_are_sorted_by_name(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic + ".b", b"x")
        cluster.publish(topic + ".a", b"x", node=1)

        found = get(cluster.nsqadmin, "/api/topics")

        assert ["topics", "message"] == list(found)
        assert [topic + ".a", topic + ".b"] == [
            name for name in found["topics"] if name.startswith(topic)
        ]
        assert "" == found["message"]

    def test_inactive_topics_come_with_their_channels(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic + ".active", b"x")
        cluster.nsqlookupd.post(f"/channel/create?topic={topic}&channel=c")
        cluster.nsqlookupd.post(f"/topic/create?topic={topic}.bare")

        found = get(cluster.nsqadmin, "/api/topics?inactive=true")["topics"]

        assert ["c"] == found[topic]
        assert found[topic + ".bare"] is None
        assert topic + ".active" not in found

    def test_a_topic_is_the_sum_of_its_nodes(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"1", b"2")
        cluster.publish(topic, b"3", node=1)
        for number in (0, 1):
            cluster.create_channel(topic, "c", node=number)

        found = get(cluster.nsqadmin, f"/api/topics/{topic}")

        assert [*TOPIC_KEYS, "message"] == list(found)
        assert ("*", "", 3) == (found["node"], found["hostname"], found["message_count"])
        assert {1, 2} == {node["message_count"] for node in found["nodes"]}
        assert [TOPIC_KEYS] * 2 == [list(node) for node in found["nodes"]]
        (channel,) = found["channels"]
        assert CHANNEL_KEYS == list(channel)
        assert ("*", 3, 2) == (channel["node"], channel["depth"], len(channel["nodes"]))
        assert {
            "count": 0,
            "percentiles": None,
            "topic": topic,
            "channel": "",
            "host": "*",
        } == found["e2e_processing_latency"]

    def test_a_channel_comes_with_its_clients(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"1", b"2", b"3")
        consumer = cluster.nsqds[0].consumer(topic, "c#ephemeral", rdy=2)
        consumer.message()
        wait_until(
            lambda: cluster.nsqds[0].shows(topic, "c%23ephemeral", depth=1, in_flight_count=2),
            "two to be in flight",
        )

        found = get(cluster.nsqadmin, f"/api/topics/{topic}/c%23ephemeral")

        locality = ["delivery_msg_count", "global_msg_count"]
        assert {*CHANNEL_KEYS, *locality, "message"} == set(found)
        assert (1, 2, 1) == (found["depth"], found["in_flight_count"], found["client_count"])
        (client,) = found["clients"]
        assert CLIENT_KEYS == list(client)
        assert cluster.nsqds[0].http_address == client["node"]
        assert 0 <= client["connected"] < 60_000_000_000
        assert client["connected"] % 1_000_000_000 == 0
        (node,) = found["nodes"]
        assert node["nodes"] is None

    def test_nodes_are_listed_with_their_topics(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")

        found = get(cluster.nsqadmin, "/api/nodes")

        assert ["nodes", "message"] == list(found)
        assert [NODE_KEYS] * 2 == [list(node) for node in found["nodes"]]
        ports = {int(nsqd.http_address.rpartition(":")[2]) for nsqd in cluster.nsqds}
        assert ports == {node["http_port"] for node in found["nodes"]}
        having = [
            node
            for node in found["nodes"]
            if {"topic": topic, "tombstoned": False} in (node["topics"] or ())
        ]
        (node,) = having
        (remote,) = node["remote_addresses"]
        assert remote == f"{cluster.nsqlookupd.http_address}/{node['remote_address']}"
        assert not node["out_of_date"]

    def test_a_node_has_totals(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"1", b"2")
        cluster.nsqds[0].consumer(topic, "c")
        address = cluster.nsqds[0].http_address

        found = get(cluster.nsqadmin, f"/api/nodes/{address}")

        assert ["node", "topics", "total_messages", "total_clients", "message"] == list(found)
        assert address == found["node"]
        assert found["total_messages"] >= 2
        assert found["total_clients"] >= 1
        assert topic in [each["topic_name"] for each in found["topics"]]

    def test_the_counter_counts_by_topic_channel_and_node(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, b"1", b"2")
        nsqd = cluster.nsqds[0]
        cluster.create_channel(topic, "c")

        found = get(cluster.nsqadmin, "/api/counter")

        assert {
            "node": nsqd.http_address,
            "topic_name": topic,
            "channel_name": "c",
            "message_count": 2,
        } == found["stats"][f"{topic}:c:{nsqd.http_address}"]

    def test_headers_are_nsqs(self, cluster: Cluster) -> None:
        connection = HTTPConnection(cluster.nsqadmin.http_address, timeout=60)
        connection.request("GET", "/api/topics")
        response = connection.getresponse()

        assert "application/json; charset=utf-8" == response.getheader("Content-Type")
        assert "nsq; version=1.0" == response.getheader("X-NSQ-Content-Type")
        connection.close()


class TestChanges:
    def test_create_reaches_nsqlookupd(self, cluster: Cluster, topic: str) -> None:
        body = {"topic": topic, "channel": "c"}

        assert DONE == change(cluster.nsqadmin, "POST", "/api/topics", **body)
        channels = cluster.nsqlookupd.http("GET", f"/channels?topic={topic}").json()
        assert ["c"] == channels["channels"]

    @pytest.mark.parametrize("kind", ["topic", "channel"])
    def test_pause_unpause_and_empty_reach_every_node(
        self, cluster: Cluster, topic: str, kind: str
    ) -> None:
        for number in (0, 1):
            cluster.publish(topic, b"x", node=number)
            if kind == "channel":
                cluster.create_channel(topic, "c", node=number)
        path = f"/api/topics/{topic}" + ("/c" if kind == "channel" else "")

        def stats_of_nodes() -> list[tuple[bool, int]]:
            stats = [nsqd.stats(topic, "c" if kind == "channel" else "") for nsqd in cluster.nsqds]
            return [(each["paused"], each["depth"]) for each in stats]

        assert DONE == change(cluster.nsqadmin, "POST", path, action="pause")
        assert [(True, 1)] * 2 == stats_of_nodes()
        assert DONE == change(cluster.nsqadmin, "POST", path, action="empty")
        assert [(True, 0)] * 2 == stats_of_nodes()
        assert DONE == change(cluster.nsqadmin, "POST", path, action="unpause")
        assert [(False, 0)] * 2 == stats_of_nodes()

    def test_delete_removes_a_channel_and_a_topic(self, cluster: Cluster, topic: str) -> None:
        cluster.publish(topic, b"x")
        nsqd = cluster.nsqds[0]
        cluster.create_channel(topic, "c")

        assert DONE == change(cluster.nsqadmin, "DELETE", f"/api/topics/{topic}/c")
        assert [] == nsqd.stats(topic)["channels"]
        assert DONE == change(cluster.nsqadmin, "DELETE", f"/api/topics/{topic}")
        assert topic not in get(cluster.nsqadmin, "/api/topics")["topics"]
        assert nsqd.http("GET", f"/stats?format=json&topic={topic}").json()["topics"] is None

    def test_tombstone_removes_a_topic_from_a_node(self, cluster: Cluster, topic: str) -> None:
        for number in (0, 1):
            cluster.publish(topic, b"x", node=number)
        first, second = (nsqd.http_address for nsqd in cluster.nsqds)

        assert DONE == change(cluster.nsqadmin, "DELETE", f"/api/nodes/{first}", topic=topic)
        assert [int(second.rpartition(":")[2])] == cluster.ports_of(topic)
        stats = cluster.nsqds[0].http("GET", f"/stats?format=json&topic={topic}").json()
        assert stats["topics"] is None


UNKNOWN = "no-such-thing"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", f"/api/topics/{UNKNOWN}", b"", 404, "TOPIC_NOT_FOUND"),
        ("GET", f"/api/topics/{UNKNOWN}/c", b"", 404, "TOPIC_NOT_FOUND"),
        ("GET", f"/api/topics/known/{UNKNOWN}", b"", 404, "CHANNEL_NOT_FOUND"),
        ("GET", f"/api/nodes/{UNKNOWN}", b"", 404, "NODE_NOT_FOUND"),
        ("GET", f"/{UNKNOWN}", b"", 404, "NOT_FOUND"),
        ("PATCH", "/api/topics", b"", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", f"/api/topics/{UNKNOWN}", b"", 404, "TOPIC_NOT_FOUND"),
        ("DELETE", f"/api/nodes/{UNKNOWN}", b'{"topic":"known"}', 404, "NODE_NOT_FOUND"),
        ("DELETE", f"/api/nodes/{UNKNOWN}", b"", 400, "INVALID_BODY"),
        ("DELETE", f"/api/nodes/{UNKNOWN}", b'{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", b'{"topic":"a","channel":"b c"}', 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics", b"x" * 100_000, 413, "BODY_TOO_BIG"),
        ("POST", "/api/topics/known", b'{"action":"burn"}', 400, "INVALID_ACTION"),
        ("POST", f"/api/topics/{UNKNOWN}", b'{"action":"pause"}', 404, "TOPIC_NOT_FOUND"),
        ("POST", f"/api/topics/known/{UNKNOWN}", b'{"action":"pause"}', 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/api/graphite", b"", 400, "INVALID_ARG_METRIC"),
        ("GET", "/api/graphite?metric=rate", b"", 400, "INVALID_ARG_TARGET"),
        ("GET", "/config/no_such_option", b"", 400, "INVALID_OPTION"),
        ("PUT", "/config/http_address", b"1", 400, "INVALID_OPTION"),
        ("PUT", "/config/log_level", b"loud", 400, "INVALID_VALUE"),
        ("PUT", "/config/log_level", b"", 413, "INVALID_VALUE"),
        ("PUT", "/config/nsqlookupd_http_addresses", b"[1]", 400, "INVALID_VALUE"),
        ("PUT", "/config/nsqlookupd_http_addresses", b'["\xff"]', 400, "INVALID_VALUE"),
    ],
)
def test_errors(
    cluster: Cluster, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    cluster.publish("known", b"x")

    answer = cluster.nsqadmin.http(method, path, body)

    assert (status, {"message": code}) == (answer.status, answer.json())


def test_invalid_json_gets_an_error_message(cluster: Cluster) -> None:
    answer = cluster.nsqadmin.http("POST", "/api/topics", b"{")

    assert (400, {"message": "Input data was truncated"}) == (answer.status, answer.json())


def test_a_topic_without_nodes_is_empty(cluster: Cluster, topic: str) -> None:
    cluster.nsqlookupd.post(f"/topic/create?topic={topic}")

    found = get(cluster.nsqadmin, f"/api/topics/{topic}")

    assert (0, None, None) == (found["depth"], found["nodes"], found["channels"])


class TestWithoutNsqlookupd:
    def test_nsqds_are_queried_directly(self, topic: str) -> None:
        with (
            run_nsqd("--broadcast-address=elsewhere.example") as nsqd,
            run_nsqadmin(f"--nsqd-http-address={nsqd.http_address}") as nsqadmin,
        ):
            assert DONE == change(nsqadmin, "POST", "/api/topics", topic=topic, channel="c")
            assert [topic] == get(nsqadmin, "/api/topics")["topics"]
            assert {} == get(nsqadmin, "/api/topics?inactive=true")["topics"]
            assert "c" == get(nsqadmin, f"/api/topics/{topic}/c")["channel_name"]
            (node,) = get(nsqadmin, "/api/nodes")["nodes"]
            assert ("elsewhere.example", None) == (
                node["broadcast_address"],
                node["remote_addresses"],
            )
            assert DONE == change(nsqadmin, "DELETE", f"/api/topics/{topic}")
            assert get(nsqadmin, "/api/topics")["topics"] is None


class TestFailingDaemons:
    def test_an_unreachable_daemon_is_a_warning_in_the_response(self, topic: str) -> None:
        with run_nsqd() as nsqd, not_http_server() as broken:
            nsqd.publish(topic, b"x")
            flags = [
                f"--nsqd-http-address={at}" for at in (nsqd.http_address, broken, unused_address())
            ]
            with run_nsqadmin(*flags, "--sample-interval=0s") as nsqadmin:
                found = get(nsqadmin, f"/api/topics/{topic}")

                assert 1 == found["message_count"]
                assert found["message"].startswith("WARNING: ")
                assert broken in found["message"]
                assert DONE != change(nsqadmin, "POST", f"/api/topics/{topic}", action="pause")

    def test_a_change_that_all_nodes_refuse_is_a_bad_gateway(
        self, cluster: Cluster, topic: str
    ) -> None:
        cluster.publish(topic, b"x")
        with (
            stock_nsqd_proxy(cluster.nsqds[0].http_address) as unable,
            run_nsqadmin(f"--nsqd-http-address={unable}") as nsqadmin,
        ):
            status, answer = change(nsqadmin, "POST", f"/api/topics/{topic}", action="pause")

            assert 502 == status
            assert answer["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: ")

    def test_if_no_daemon_is_reachable_it_is_a_bad_gateway(self) -> None:
        with run_nsqadmin(
            f"--lookupd-http-address={unused_address()}", "--sample-interval=0s"
        ) as nsqadmin:
            for path in ("/api/topics", "/api/topics/t", "/api/nodes", "/api/counter"):
                answer = nsqadmin.http("GET", path)

                assert 502 == answer.status
                assert answer.json()["message"].startswith("UPSTREAM_ERROR: failed to query any")


class TestConfig:
    def test_lookupds_can_be_changed(self, cluster: Cluster) -> None:
        lookupd, nowhere = cluster.nsqlookupd.http_address, unused_address()
        with run_nsqadmin(f"--lookupd-http-address={nowhere}") as nsqadmin:
            path = "/config/nsqlookupd_http_addresses"
            assert [nowhere] == get(nsqadmin, path)

            answer = nsqadmin.http("PUT", path, json.dumps([lookupd]).encode())

            assert [lookupd] == answer.json()
            assert 2 == len(get(nsqadmin, "/api/nodes")["nodes"])

    def test_the_log_level_can_be_changed(self, cluster: Cluster) -> None:
        answer = cluster.nsqadmin.http("PUT", "/config/log_level", b"debug")

        assert (200, b"1") == (answer.status, answer.body)

    def test_config_is_restricted_to_a_network(self, cluster: Cluster) -> None:
        lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
        with run_nsqadmin(lookupd, "--allow-config-from-cidr=10.0.0.0/8") as nsqadmin:
            answer = nsqadmin.http("GET", "/config/log_level")

            assert (403, {"message": "FORBIDDEN"}) == (answer.status, answer.json())


def test_everything_is_below_the_base_path(cluster: Cluster) -> None:
    lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
    with run_nsqadmin(lookupd, "--base-path=nsq/") as nsqadmin:
        assert b"OK" == nsqadmin.http("GET", "/nsq/ping").body
        assert 200 == nsqadmin.http("GET", "/nsq/api/topics").status
        assert 404 == nsqadmin.http("GET", "/api/topics").status
