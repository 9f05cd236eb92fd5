"""The HTTP API of the running program: every endpoint, response and order of errors."""

import re
import socket
import struct
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import NamedTuple

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

MAX_MSG_SIZE = 100
MAX_BODY_SIZE = 1000


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd(
        f"--max-msg-size={MAX_MSG_SIZE}",
        f"--max-body-size={MAX_BODY_SIZE}",
        "--broadcast-address=broadcast.example",
        "--topology-zone=zone",
        "--topology-region=region",
    ) as process:
        process.post("/topic/create?topic=known")
        process.post("/channel/create?topic=known&channel=c")
        yield process


def request(line: str, body: str = "") -> str:
    return f"{line} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def pipelined(nsqd: NsqdProcess, *requests: str) -> str:
    """The responses to requests that are pipelined on one connection."""
    host, _, port = nsqd.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("".join(requests).encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


class Call(NamedTuple):
    """A request, and the status and body of its response."""

    method: str
    target: str
    body: bytes
    status: int
    answer: bytes


def ok(method: str, target: str, body: bytes = b"", answer: bytes = b"") -> Call:
    return Call(method, target, body, 200, answer)


def refused(status: int, code: str, method: str, target: str, body: bytes = b"") -> Call:
    return Call(method, target, body, status, f'{{"message":"{code}"}}'.encode())


def bad(code: str, target: str, body: bytes = b"", *, method: str = "POST") -> Call:
    return refused(400, code, method, target, body)


def missing(code: str, target: str) -> Call:
    return refused(404, code, "POST", target)


def multi(*bodies: bytes, count: int | None = None) -> bytes:
    """The body of a binary /mpub."""
    sized = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return struct.pack(">i", len(bodies) if count is None else count) + sized


TOO_LONG_NAME = "x" * 65
TOPIC_VERBS = ("delete", "empty", "pause", "unpause")
CHANNEL_VERBS = ("create", "delete", "empty", "pause", "unpause")

PUB = [
    ok("POST", "/pub?topic=t", b"x", b"OK"),
    ok("POST", "/pub?topic=t", b"x" * MAX_MSG_SIZE, b"OK"),
    ok("POST", "/pub?topic=t&topic=!", b"x", b"OK"),
    ok("POST", "/pub?topic=t%23ephemeral", b"x", b"OK"),
    ok("POST", f"/pub?topic={'x' * 64}", b"x", b"OK"),
    ok("POST", "/pub?topic=t&defer=0", b"x", b"OK"),
    ok("POST", "/pub?topic=t&defer=%2B5", b"x", b"OK"),
    ok("POST", "/pub?topic=t&defer=3600000", b"x", b"OK"),
    # In the order of the checks: of two errors, the first is returned.
    refused(413, "MSG_TOO_BIG", "POST", "/pub?topic=t", b"x" * (MAX_MSG_SIZE + 1)),
    refused(413, "MSG_TOO_BIG", "POST", "/pub", b"x" * (MAX_MSG_SIZE + 1)),
    bad("MSG_EMPTY", "/pub?topic=t"),
    bad("MSG_EMPTY", "/pub"),
    bad("MSG_EMPTY", "/pub?%"),
    bad("INVALID_REQUEST", "/pub?topic=t&a=%", b"x"),
    bad("INVALID_REQUEST", "/pub?topic=t;a=b", b"x"),
    bad("INVALID_REQUEST", "/pub?%", b"x"),
    bad("MISSING_ARG_TOPIC", "/pub", b"x"),
    bad("MISSING_ARG_TOPIC", "/pub?TOPIC=t&defer=x", b"x"),
    bad("INVALID_TOPIC", "/pub?topic=", b"x"),
    bad("INVALID_TOPIC", "/pub?topic=a+b", b"x"),
    bad("INVALID_TOPIC", "/pub?topic=t%0a", b"x"),
    bad("INVALID_TOPIC", "/pub?topic=%ff&defer=x", b"x"),
    bad("INVALID_TOPIC", f"/pub?topic={TOO_LONG_NAME}", b"x"),
    *(
        bad("INVALID_DEFER", f"/pub?topic=t&defer={text}", b"x")
        for text in ("", "x", "-1", "3600001", "1.5", "1_0", "%201", "1s", "9" * 19, "9" * 30)
    ),
]

MPUB = [
    ok("POST", "/mpub?topic=t", b"a\nb\n", b"OK"),
    ok("POST", "/mpub?topic=t", b"", b"OK"),
    ok("POST", "/mpub?topic=t", b"\n\n", b"OK"),
    ok("POST", "/mpub?topic=t", (b"x" * 99 + b"\n") * 10, b"OK"),
    ok("POST", "/mpub?topic=t&binary=false", b"a", b"OK"),
    ok("POST", "/mpub?topic=t&binary=0", b"a", b"OK"),
    *(
        ok("POST", f"/mpub?topic=t&binary{value}", multi(b"a", b"b"), b"OK")
        for value in ("=true", "=1", "", "=yes", "=FALSE")
    ),
    ok("POST", "/mpub?topic=t&binary=1", multi(b"a") + b"trailing", b"OK"),
    refused(413, "BODY_TOO_BIG", "POST", "/mpub?topic=t", b"x\n" * 501),
    refused(413, "BODY_TOO_BIG", "POST", "/mpub", b"x\n" * 501),
    bad("INVALID_REQUEST", "/mpub?topic=t&%", b"x"),
    bad("MISSING_ARG_TOPIC", "/mpub", b"x"),
    bad("MISSING_ARG_TOPIC", "/mpub?binary=1", b""),
    bad("INVALID_TOPIC", "/mpub?topic=!&binary=1", b""),
    refused(413, "MSG_TOO_BIG", "POST", "/mpub?topic=t", b"a\n" + b"x" * 101 + b"\nb"),
    refused(413, "BAD_BODY", "POST", "/mpub?topic=t&binary=1"),
    refused(413, "BAD_BODY", "POST", "/mpub?topic=t&binary=1", b"\0\0"),
    refused(413, "BAD_BODY", "POST", "/mpub?topic=t&binary=1", multi()),
    refused(413, "BAD_BODY", "POST", "/mpub?topic=t&binary=1", multi(b"a", count=-1)),
    refused(413, "BAD_BODY", "POST", "/mpub?topic=t&binary=1", multi(b"a", count=200)),
    refused(413, "BAD_MESSAGE", "POST", "/mpub?topic=t&binary=1", multi(b"a", count=2)),
    refused(413, "BAD_MESSAGE", "POST", "/mpub?topic=t&binary=1", multi(b"a", b"")),
    refused(413, "BAD_MESSAGE", "POST", "/mpub?topic=t&binary=1", multi(b"x" * 101)),
    refused(413, "BAD_MESSAGE", "POST", "/mpub?topic=t&binary=1", multi(b"abc")[:-1]),
]

TOPICS = [
    ok("POST", "/topic/create?topic=new"),
    ok("POST", "/topic/create?topic=known"),
    bad("MISSING_ARG_TOPIC", "/topic/create"),
    bad("INVALID_TOPIC", "/topic/create?topic="),
    bad("INVALID_TOPIC", f"/topic/create?topic={TOO_LONG_NAME}"),
    *(bad("MISSING_ARG_TOPIC", f"/topic/{verb}?channel=c") for verb in TOPIC_VERBS),
    *(bad("INVALID_REQUEST", f"/topic/{verb}?topic=%zz") for verb in ("create", *TOPIC_VERBS)),
    *(missing("TOPIC_NOT_FOUND", f"/topic/{verb}?topic=unknown") for verb in TOPIC_VERBS),
    bad("INVALID_TOPIC", "/topic/empty?topic=!"),
    missing("TOPIC_NOT_FOUND", "/topic/delete?topic=!"),
    missing("TOPIC_NOT_FOUND", "/topic/pause?topic="),
    *(ok("POST", f"/topic/{verb}?topic=known") for verb in ("empty", "pause", "unpause")),
]

CHANNELS = [
    ok("POST", "/channel/create?topic=known&channel=new"),
    ok("POST", "/channel/create?topic=known&channel=c"),
    *(
        call
        for verb in CHANNEL_VERBS
        for call in (
            bad("INVALID_REQUEST", f"/channel/{verb}?topic=a;channel=b"),
            bad("MISSING_ARG_TOPIC", f"/channel/{verb}?channel=!"),
            bad("INVALID_ARG_TOPIC", f"/channel/{verb}?topic=!"),
            bad("MISSING_ARG_CHANNEL", f"/channel/{verb}?topic=unknown"),
            bad("INVALID_ARG_CHANNEL", f"/channel/{verb}?topic=unknown&channel=!"),
            bad("INVALID_ARG_CHANNEL", f"/channel/{verb}?topic=known&channel={TOO_LONG_NAME}"),
            missing("TOPIC_NOT_FOUND", f"/channel/{verb}?topic=unknown&channel=c"),
        )
    ),
    *(
        missing("CHANNEL_NOT_FOUND", f"/channel/{verb}?topic=known&channel=unknown")
        for verb in CHANNEL_VERBS
        if verb != "create"
    ),
    *(
        ok("POST", f"/channel/{verb}?topic=known&channel=c")
        for verb in ("empty", "pause", "unpause")
    ),
]

CONFIG = [
    ok("GET", "/config/mem_queue_size", answer=b"10000"),
    ok("GET", "/config/msg_timeout", answer=b"60000000000"),
    ok("GET", "/config/log_level", answer=b"2"),
    ok("GET", "/config/tls_min_version", answer=b"771"),
    ok("GET", "/config/deflate", answer=b"true"),
    ok("GET", "/config/broadcast_address", answer=b"broadcast.example"),
    ok("GET", "/config/nsqlookupd_tcp_addresses", answer=b"[]"),
    ok("GET", "/config/e2e_processing_latency_percentiles", answer=b"[]"),
    bad("INVALID_OPTION", "/config/unknown", method="GET"),
    bad("INVALID_OPTION", "/config/mem-queue-size", method="GET"),
    bad("INVALID_OPTION", "/config/version", method="GET"),
    refused(404, "NOT_FOUND", "GET", "/config/"),
    refused(413, "INVALID_VALUE", "PUT", "/config/log_level"),
    refused(413, "INVALID_VALUE", "PUT", "/config/log_level", b"x" * (MAX_MSG_SIZE + 1)),
    bad("INVALID_VALUE", "/config/log_level", b"loud", method="PUT"),
    bad("INVALID_VALUE", "/config/log_level", b"\xff", method="PUT"),
    bad("INVALID_VALUE", "/config/nsqlookupd_tcp_addresses", b'["\xff"]', method="PUT"),
    bad("INVALID_OPTION", "/config/mem_queue_size", b"1", method="PUT"),
    bad("INVALID_OPTION", "/config/unknown", b"1", method="PUT"),
]

OTHERS = [
    ok("GET", "/ping", answer=b"OK"),
    refused(404, "NOT_FOUND", "GET", "/"),
    refused(404, "NOT_FOUND", "GET", "/put"),
    *(
        refused(404, "NOT_FOUND", method, target)
        for method, target in (
            ("GET", "/debug/pprof/"),
            ("GET", "/debug/pprof/heap"),
            ("PUT", "/debug/setblockrate"),
            ("POST", "/debug/freememory"),
        )
    ),
    *(
        refused(405, "METHOD_NOT_ALLOWED", method, target)
        for method, target in (
            ("POST", "/ping"),
            ("GET", "/pub?topic=t"),
            ("PUT", "/pub?topic=t"),
            ("GET", "/topic/create?topic=t"),
            ("DELETE", "/channel/delete?topic=known&channel=c"),
            ("POST", "/config/log_level"),
        )
    ),
    bad("INVALID_REQUEST", "/stats?%", method="GET"),
]


@pytest.mark.parametrize(
    "call",
    [*PUB, *MPUB, *TOPICS, *CHANNELS, *CONFIG, *OTHERS],
    ids=lambda call: f"{call.method} {call.target[:60]} {len(call.body)}".replace("\n", " "),
)
def test_every_request_gets_its_response(nsqd: NsqdProcess, call: Call) -> None:
    answer = nsqd.http(call.method, call.target, call.body)

    assert (call.status, call.answer) == (answer.status, answer.body)


JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "target", "content_type", "is_v1"),
    [
        ("GET", "/ping", TEXT, False),
        ("GET", "/info", JSON, True),
        ("POST", "/pub?topic=t", TEXT, True),
        ("GET", "/stats", TEXT, True),
        ("GET", "/stats?format=json", JSON, True),
        ("POST", "/topic/create?topic=t", None, True),
        ("GET", "/config/mem_queue_size", JSON, True),
        ("GET", "/config/statsd_prefix", TEXT, True),
        ("GET", "/config/statsd_address", None, True),
        ("GET", "/config/unknown", JSON, True),
        ("GET", "/nope", JSON, True),
        ("PUT", "/ping", JSON, True),
    ],
)
def test_responses_have_content_types(
    nsqd: NsqdProcess, method: str, target: str, content_type: str | None, is_v1: bool
) -> None:
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    connection.request(method, target, b"x")
    headers = connection.getresponse().headers
    connection.close()

    assert content_type == headers["Content-Type"]
    assert ("nsq; version=1.0" if is_v1 else None) == headers["X-Nsq-Content-Type"]


def test_info_describes_this_node(nsqd: NsqdProcess) -> None:
    info = nsqd.http("GET", "/info").json()

    assert [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
        "topology_zone",
        "topology_region",
        "node_id",
    ] == list(info)
    assert "1.3.0" == info["version"]
    assert "broadcast.example" == info["broadcast_address"]
    assert nsqd.http_address == f"127.0.0.1:{info['http_port']}"
    assert nsqd.tcp_address == f"127.0.0.1:{info['tcp_port']}"
    assert nsqd.http("GET", "/stats?format=json").json()["start_time"] == info["start_time"]
    assert (60_000_000_000, 30_000_000_000) == (
        info["max_heartbeat_interval"],
        info["max_output_buffer_timeout"],
    )
    assert ("zone", "region") == (info["topology_zone"], info["topology_region"])
    assert nsqd.http("GET", "/config/id").json() == info["node_id"]


@pytest.mark.parametrize("what", ["tcp", "http"])
def test_broadcast_ports_default_to_those_of_the_listeners(nsqd: NsqdProcess, what: str) -> None:
    port = nsqd.http("GET", "/info").json()[f"{what}_port"]

    assert b"%d" % port == nsqd.http("GET", f"/config/broadcast_{what}_port").body


class TestPublishing:
    def test_any_body_is_a_message(self, nsqd: NsqdProcess, topic: str) -> None:
        body = b"topic=other&a\r\n\0\xff"
        nsqd.post(f"/pub?topic={topic}", body)

        assert body == nsqd.consumer(topic, "c", rdy=1).message().body

    def test_lines_are_messages(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/mpub?topic={topic}", b"\none\r\n\n two\n\nthree")

        received = nsqd.consumer(topic, "c", rdy=3).messages(3)
        assert [b"one\r", b" two", b"three"] == [message.body for message in received]

    def test_binary_messages_are_unchanged(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/mpub?topic={topic}&binary=true", multi(b"a\nb", b"\0"))

        received = nsqd.consumer(topic, "c", rdy=2).messages(2)
        assert [b"a\nb", b"\0"] == [message.body for message in received]

    def test_a_deferred_message_is_delivered_later(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        nsqd.post(f"/pub?topic={topic}&defer=300", b"later")
        nsqd.post(f"/pub?topic={topic}", b"now")

        assert 1 == nsqd.stats(topic, "c")["deferred_count"]
        received = nsqd.consumer(topic, "c", rdy=2).messages(2)
        assert [b"now", b"later"] == [message.body for message in received]

    @pytest.mark.parametrize(
        "call",
        [
            bad("INVALID_DEFER", "/pub?topic={}&defer=x", b"x"),
            refused(413, "BAD_BODY", "POST", "/mpub?topic={}&binary=1", b""),
            refused(413, "MSG_TOO_BIG", "POST", "/mpub?topic={}", b"x" * 101),
        ],
    )
    def test_the_topic_is_created_even_if_the_deferral_is_invalid(
        self, nsqd: NsqdProcess, topic: str, call: Call
    ) -> None:
        answer = nsqd.http("POST", call.target.format(topic), call.body)

        assert call.status == answer.status
        assert 0 == nsqd.stats(topic)["message_count"]

    def test_an_mpub_with_one_invalid_message_publishes_nothing(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        nsqd.http("POST", f"/mpub?topic={topic}", b"good\n" + b"x" * 101)
        nsqd.http("POST", f"/mpub?topic={topic}&binary=1", multi(b"good", b"x" * 101))

        assert 0 == nsqd.stats(topic)["message_count"]

    def test_an_unknown_value_of_binary_is_warned_of(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/mpub?topic={topic}&binary=oddly", multi(b"x"))

        assert "WARNING: deprecated value 'oddly' used for /mpub binary param" in nsqd.log

    def test_publishes_are_not_logged(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/pub?topic={topic}", b"x")
        nsqd.http("GET", f"/stats?topic={topic}&format=json")

        assert f"200 GET /stats?topic={topic}&format=json (127.0.0.1:" in nsqd.log
        assert f"POST /pub?topic={topic}" not in nsqd.log

    def test_requests_on_one_connection_take_effect_in_their_order(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        answers = pipelined(
            nsqd,
            request(f"POST /pub?topic={topic}", "1"),
            request(f"POST /pub?topic={topic}&defer=60000", "2"),
            request(f"POST /mpub?topic={topic}", "3\n4"),
            request(f"GET /stats?format=json&topic={topic}"),
            request(f"POST /pub?topic={topic}", "5"),
            request(f"POST /topic/delete?topic={topic}"),
            request(f"GET /stats?format=json&topic={topic}"),
        )

        assert 7 == answers.count("HTTP/1.1 200 OK")
        assert ["4"] == re.findall(r'"message_count":(\d+)', answers)
        assert '"topics":null' in answers

    def test_any_number_of_requests_can_be_pipelined(self, nsqd: NsqdProcess, topic: str) -> None:
        answers = pipelined(nsqd, *[request(f"POST /pub?topic={topic}", "x")] * 1000)

        assert 1000 == answers.count("HTTP/1.1 200 OK")
        assert 1000 == nsqd.stats(topic)["message_count"]

    def test_the_last_request_of_a_connection_is_answered_last(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        for last in ("GET /stats", "POST /topic/create?topic=x", f"POST /pub?topic={topic}"):
            closing = request(last, "x").replace("Host: a", "Host: a\r\nConnection: close")
            answers = pipelined(nsqd, request(f"POST /pub?topic={topic}", "x"), closing)
            _, first, second = answers.split("HTTP/1.1 200 OK")

            assert (False, True) == ("Connection: close" in first, "Connection: close" in second)

    def test_ok_waits_for_the_fsync_with_sync_every_1(self, topic: str) -> None:
        with run_nsqd("--sync-every=1") as nsqd:
            for number in range(10):
                nsqd.post(f"/pub?topic={topic}", b"%d" % number)
            nsqd.post(f"/mpub?topic={topic}", b"10\n11")
            nsqd.post(f"/pub?topic={topic}%23ephemeral", b"x")

            assert 12 == nsqd.stats(topic)["message_count"]


class TestTopics:
    def test_a_topic_is_created_and_deleted(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        assert 0 == nsqd.stats(topic)["depth"]
        nsqd.post(f"/topic/delete?topic={topic}")

        assert nsqd.http("GET", f"/stats?format=json&topic={topic}").json()["topics"] is None

    def test_emptying_a_topic_does_not_affect_its_channels(
        self, nsqd: NsqdProcess, topic: str
    ) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        nsqd.post(f"/pub?topic={topic}", b"in the channel")
        nsqd.post(f"/topic/pause?topic={topic}")
        nsqd.post(f"/pub?topic={topic}", b"in the topic")
        assert 1 == nsqd.stats(topic)["depth"]
        nsqd.post(f"/topic/empty?topic={topic}")
        nsqd.post(f"/topic/unpause?topic={topic}")

        stats = nsqd.stats(topic)
        assert (0, 1) == (stats["depth"], stats["channels"][0]["depth"])

    @pytest.mark.parametrize("what", ["topic", "channel"])
    def test_a_pause_is_stored_at_once(self, topic: str, what: str) -> None:
        with run_nsqd() as nsqd:
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel=c")
            nsqd.post(f"/{what}/pause?topic={topic}&channel=c")
            nsqd.kill()
            nsqd.start()

            stats = nsqd.stats(topic)
            paused = (stats["paused"], stats["channels"][0]["paused"])
            assert ((True, False) if what == "topic" else (False, True)) == paused


class TestChannels:
    @pytest.fixture(autouse=True)
    def _with_three_messages(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
        nsqd.post(f"/mpub?topic={topic}", b"1\n2\n3")

    def test_a_channel_is_deleted_with_its_messages(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/channel/delete?topic={topic}&channel=c")

        assert [] == nsqd.stats(topic)["channels"]

    def test_a_channel_is_emptied_of_all_messages(self, nsqd: NsqdProcess, topic: str) -> None:
        consumer = nsqd.consumer(topic, "c", rdy=1)
        consumer.message()
        nsqd.post(f"/channel/empty?topic={topic}&channel=c")

        stats = nsqd.stats(topic, "c")
        assert (0, 0) == (stats["depth"], stats["in_flight_count"])
        nsqd.post(f"/pub?topic={topic}", b"4")
        assert b"4" == consumer.message().body

    def test_a_paused_channel_delivers_nothing(self, nsqd: NsqdProcess, topic: str) -> None:
        nsqd.post(f"/channel/pause?topic={topic}&channel=c")
        consumer = nsqd.consumer(topic, "c", rdy=3)
        wait_until(lambda: nsqd.stats(topic, "c")["clients"][0]["ready_count"] == 3, "RDY")
        assert 3 == nsqd.stats(topic, "c")["depth"]
        nsqd.post(f"/channel/unpause?topic={topic}&channel=c")

        assert [b"1", b"2", b"3"] == [message.body for message in consumer.messages(3)]


def test_the_log_level_is_changed_while_running() -> None:
    with run_nsqd() as nsqd_process:
        quiet = nsqd_process.http("PUT", "/config/log_level", b"Error")
        nsqd_process.http("GET", "/config/log_level?while=quiet")
        loud = nsqd_process.http("PUT", "/config/log_level", b"INFO")
        now = nsqd_process.http("GET", "/config/log_level?while=loud")

        assert [(200, b"4"), (200, b"2"), (200, b"2")] == [quiet, loud, now]
        assert "while=quiet" not in nsqd_process.log
        assert "INFO: 200 GET /config/log_level?while=loud" in nsqd_process.log


def test_a_unix_socket_has_no_port(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sockets")
    with run_nsqd(f"--tcp-address={folder}/tcp") as nsqd_process:
        info = nsqd_process.http("GET", "/info").json()

    assert -1 == info["tcp_port"]
    assert info["http_port"] > 0
