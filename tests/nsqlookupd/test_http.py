"""The HTTP API of the running program: every endpoint, response and error."""

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.nsqlookupd.http import CACHED_LOOKUPS_MAX
from penstock.nsqlookupd.metrics import FAMILIES
from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until


@dataclass(frozen=True)
class FullResponse:
    """An HTTP response with its headers, without the date."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def index(self) -> int:
        return int(dict(self.headers)["X-Penstock-Index"])


def call(nsqlookupd: NsqlookupdProcess, method: str, target: str) -> FullResponse:
    connection = HTTPConnection(nsqlookupd.http_address, timeout=60)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        headers = [header for header in response.getheaders() if header[0] != "Date"]
        return FullResponse(response.status, headers, response.read())
    finally:
        connection.close()


def json_headers(body: bytes, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [
        ("Content-Type", "application/json; charset=utf-8"),
        ("X-Nsq-Content-Type", "nsq; version=1.0"),
        *more,
        ("Content-Length", str(len(body))),
    ]


class Call(NamedTuple):
    """A request, and the status and body of its response."""

    method: str
    target: str
    status: int
    answer: bytes


def refused(status: int, code: str, method: str, target: str) -> Call:
    return Call(method, target, status, f'{{"message":"{code}"}}'.encode())


TOO_LONG = "x" * 65

CALLS = [
    Call("GET", "/ping", 200, b"OK"),
    Call("GET", "/info", 200, b'{"version":"1.3.0"}'),
    Call("GET", "/channels?topic=unknown", 200, b'{"channels":[]}'),
    Call("GET", "/channels?topic=", 200, b'{"channels":[]}'),
    Call("GET", "/channels?topic=*", 200, b'{"channels":[]}'),
    Call("GET", "/channels?topic=known", 200, b'{"channels":["c"]}'),
    Call("GET", "/lookup?topic=known", 200, b'{"channels":["c"],"producers":[]}'),
    Call("GET", "/lookup?topic=known&topic=x", 200, b'{"channels":["c"],"producers":[]}'),
    Call("GET", "/lookup?topic=known&for=consumer", 200, b'{"channels":["c"],"producers":[]}'),
    Call("GET", "/nodes", 200, b'{"producers":[]}'),
    Call("GET", "/debug", 200, b"{}"),
    refused(400, "MISSING_ARG_TOPIC", "GET", "/channels"),
    refused(400, "MISSING_ARG_TOPIC", "GET", "/lookup?TOPIC=known"),
    refused(404, "TOPIC_NOT_FOUND", "GET", "/lookup?topic=unknown"),
    refused(404, "TOPIC_NOT_FOUND", "GET", "/lookup?topic="),
    refused(404, "TOPIC_NOT_FOUND", "GET", "/lookup?topic=*"),
    refused(400, "INVALID_REQUEST", "GET", "/lookup?topic=%"),
    refused(400, "INVALID_ARG_FOR", "GET", "/lookup?topic=known&for=everybody"),
    refused(400, "INVALID_ARG_FOR", "GET", "/nodes?for="),
    *(
        refused(400, "INVALID_ARG_WAIT", "GET", f"/lookup?topic=known&wait={wait}")
        for wait in ("", "x", "30", "-1s", "1s2")
    ),
    *(
        refused(400, "INVALID_ARG_INDEX", "GET", f"/lookup?topic=known&wait=1s&index={index}")
        for index in ("", "x", "-1", "1.0", "%2B1", "9" * 20)
    ),
    refused(400, "MISSING_ARG_TOPIC", "POST", "/topic/create"),
    refused(400, "INVALID_ARG_TOPIC", "POST", "/topic/create?topic="),
    refused(400, "INVALID_ARG_TOPIC", "POST", "/topic/create?topic=t%0a"),
    refused(400, "INVALID_ARG_TOPIC", "POST", f"/topic/create?topic={TOO_LONG}"),
    refused(400, "MISSING_ARG_TOPIC", "POST", "/topic/delete"),
    Call("POST", "/topic/delete?topic=unknown", 200, b""),
    Call("POST", "/topic/delete?topic=*", 200, b""),
    refused(400, "MISSING_ARG_TOPIC", "POST", "/topic/tombstone?node=n:1"),
    refused(400, "MISSING_ARG_NODE", "POST", "/topic/tombstone?topic=known"),
    Call("POST", "/topic/tombstone?topic=unknown&node=n:1", 200, b""),
    *(
        refused(400, code, "POST", f"/channel/{verb}?{query}")
        for verb in ("create", "delete")
        for code, query in (
            ("MISSING_ARG_TOPIC", "channel=c"),
            ("INVALID_ARG_TOPIC", "topic=!&channel=!"),
            ("MISSING_ARG_CHANNEL", "topic=t"),
            ("INVALID_ARG_CHANNEL", "topic=t&channel=a+b"),
        )
    ),
    refused(404, "CHANNEL_NOT_FOUND", "POST", "/channel/delete?topic=known&channel=unknown"),
    refused(404, "CHANNEL_NOT_FOUND", "POST", "/channel/delete?topic=unknown&channel=c"),
    refused(404, "NOT_FOUND", "GET", "/nothing"),
    refused(404, "NOT_FOUND", "GET", "/debug/pprof"),
    refused(405, "METHOD_NOT_ALLOWED", "GET", "/topic/create?topic=t"),
    refused(405, "METHOD_NOT_ALLOWED", "POST", "/lookup?topic=t"),
]


@pytest.fixture(scope="module")
def empty() -> Iterator[NsqlookupdProcess]:
    """An nsqlookupd without nodes."""
    with run_nsqlookupd() as process:
        process.post("/channel/create?topic=known&channel=c")
        yield process


@pytest.mark.parametrize("case", CALLS, ids=lambda case: f"{case.method} {case.target[:60]}")
def test_every_request_has_its_response(empty: NsqlookupdProcess, case: Call) -> None:
    answer = call(empty, case.method, case.target)

    assert (case.status, case.answer) == (answer.status, answer.body)


def test_requests_of_another_web_site_are_refused(empty: NsqlookupdProcess) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}

    for target in ("/topic/create?topic=t", "/topic/delete?topic=t", "/topic/tombstone?topic=t"):
        answer = empty.http("POST", target, headers=headers)
        assert (403, b'{"message":"CROSS_SITE_REQUEST"}') == answer
    assert 200 == empty.http("GET", "/topics", headers=headers).status


def test_responses_have_the_headers_of_nsq(empty: NsqlookupdProcess) -> None:
    ping = call(empty, "GET", "/ping")
    found = call(empty, "GET", "/lookup?topic=known")
    nothing = call(empty, "POST", "/topic/delete?topic=unknown")
    not_found = call(empty, "GET", "/lookup?topic=unknown")

    assert [("Content-Length", "2"), ("Content-Type", "text/plain; charset=utf-8")] == ping.headers
    assert json_headers(found.body) == found.headers
    assert [
        ("X-Nsq-Content-Type", "nsq; version=1.0"),
        ("Content-Length", "0"),
    ] == nothing.headers
    assert json_headers(not_found.body) == not_found.headers


def test_a_topic_and_a_channel_are_created_and_deleted(
    empty: NsqlookupdProcess, topic: str
) -> None:
    def known() -> tuple[bool, bytes]:
        topics = json.loads(call(empty, "GET", "/topics").body)["topics"]
        return topic in topics, call(empty, "GET", f"/channels?topic={topic}").body

    seen = []
    for verb in ("topic/create", "channel/create", "channel/delete", "channel/create"):
        empty.post(f"/{verb}?topic={topic}&channel=c")
        seen.append(known())
    empty.post(f"/topic/delete?topic={topic}")

    with_channel, without = b'{"channels":["c"]}', b'{"channels":[]}'
    assert [(True, without), (True, with_channel), (True, without), (True, with_channel)] == seen
    assert (False, without) == known()
    assert f"DB: adding channel(c) in topic({topic})" in empty.log
    assert f"DB: removing topic({topic})" in empty.log


def test_all_fields_of_a_node(topic: str) -> None:
    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node(
            "<n>", hostname="h", version="v", topology_zone="z", topology_region="r"
        )
        node.call(lookup_v1.register(topic, "c"))
        before_ns = time.time_ns()
        node.call(lookup_v1.ping())

        lookup = call(nsqlookupd, "GET", f"/lookup?topic={topic}").body
        nodes = call(nsqlookupd, "GET", "/nodes").body
        debug = call(nsqlookupd, "GET", "/debug").body

        shown = (
            f'"remote_address":"{node.address}","hostname":"h",'
            '"broadcast_address":"\\u003cn\\u003e","tcp_port":4150,"http_port":4151,'
            '"version":"v","topology_zone":"z","topology_region":"r"'
        )
        assert f'{{"channels":["c"],"producers":[{{{shown}}}]}}' == lookup.decode()
        assert (
            f'{{"producers":[{{{shown},"tombstones":[false],"topics":["{topic}"]}}]}}'
            == nodes.decode()
        )
        last_update_ns = json.loads(debug)["client::"][0]["last_update"]
        assert before_ns <= last_update_ns <= time.time_ns()
        entry = (
            '[{"broadcast_address":"\\u003cn\\u003e","hostname":"h","http_port":4151,'
            f'"id":"{node.address}","last_update":{last_update_ns},"tcp_port":4150,'
            '"tombstoned":false,"tombstoned_at":-6795364578871345152,'
            '"topology_region":"r","topology_zone":"z","version":"v"}]'
        )
        keys = (f"channel:{topic}:c", "client::", f"topic:{topic}:")
        assert "{" + ",".join(f'"{key}":{entry}' for key in keys) + "}" == debug.decode()


def test_only_nodes_shows_the_node_id(topic: str) -> None:
    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node("a", node_id=0)
        node.call(lookup_v1.register(topic))

        (listed,) = nsqlookupd.http("GET", "/nodes").json()["producers"]
        (found,) = nsqlookupd.http("GET", f"/lookup?topic={topic}").json()["producers"]
        assert (0, "node_id") == (listed["node_id"], list(listed)[-1])
        assert "node_id" not in found
        assert b'"node_id"' not in nsqlookupd.http("GET", "/debug").body


def test_cached_lookups_of_many_topics_are_never_stale() -> None:
    with run_nsqlookupd() as nsqlookupd:
        first, second = nsqlookupd.node("first"), nsqlookupd.node("second")
        topics = [f"topic-{number}" for number in range(CACHED_LOOKUPS_MAX + 10)]

        for node, expected in ((first, ["first"]), (second, ["first", "second"])):
            for topic in topics:
                node.call(lookup_v1.register(topic, topic))
            for topic in topics:
                answer = nsqlookupd.http("GET", f"/lookup?topic={topic}").json()
                assert [topic] == answer["channels"]
                assert expected == [node["broadcast_address"] for node in answer["producers"]]


def test_a_tombstoned_node_is_hidden_from_lookups_and_flagged_among_the_nodes() -> None:
    with run_nsqlookupd("--tombstone-lifetime=5s") as nsqlookupd:
        node = nsqlookupd.node("n")
        for topic in ("t", "u"):
            node.call(lookup_v1.register(topic))

        nsqlookupd.post("/topic/tombstone?topic=t&node=n:4151")
        hidden = nsqlookupd.found("t"), nsqlookupd.found("u")
        nodes = nsqlookupd.http("GET", "/nodes").json()["producers"][0]
        wait_until(lambda: nsqlookupd.found("t"), "the tombstone to expire")
        debug = nsqlookupd.http("GET", "/debug").json()["topic:t:"][0]

        assert ([], ["n"]) == hidden
        assert {"t": True, "u": False} == dict(
            zip(nodes["topics"], nodes["tombstones"], strict=True)
        )
        assert debug["tombstoned"]
        assert 0 < debug["tombstoned_at"] <= time.time_ns()


def test_a_node_without_pings_is_left_out_of_lookups_and_nodes() -> None:
    with run_nsqlookupd("--inactive-producer-timeout=200ms") as nsqlookupd:
        nsqlookupd.node("silent").call(lookup_v1.register("t", "c"))
        wait_until(lambda: not nsqlookupd.found("t"), "the node to be inactive")

        assert b'{"producers":[]}' == nsqlookupd.http("GET", "/nodes").body
        assert b'{"topics":["t"]}' == nsqlookupd.http("GET", "/topics").body
        assert b'{"channels":["c"]}' == nsqlookupd.http("GET", "/channels?topic=t").body
        assert "topic:t:" in nsqlookupd.http("GET", "/debug").json()


def test_a_draining_node_is_for_consumers_only(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    node = nsqlookupd.node("n")
    node.call(lookup_v1.register(topic))
    before = call(nsqlookupd, "GET", f"/lookup?topic={topic}").body

    node.call(lookup_v1.ping(draining=True))
    for_consumers = call(nsqlookupd, "GET", f"/lookup?topic={topic}").body
    for_producers = call(nsqlookupd, "GET", f"/lookup?topic={topic}&for=producer").body
    node.call(lookup_v1.ping())
    after = call(nsqlookupd, "GET", f"/lookup?topic={topic}&for=producer").body

    assert before.replace(b"}]}", b',"draining":true}]}') == for_consumers
    assert b'{"channels":[],"producers":[]}' == for_producers
    assert before == after


def test_a_draining_node_is_marked_among_the_nodes_and_in_debug() -> None:
    with run_nsqlookupd() as nsqlookupd:
        nsqlookupd.node("n").call(lookup_v1.ping(draining=True))

        assert nsqlookupd.http("GET", "/nodes").json()["producers"][0]["draining"]
        assert nsqlookupd.http("GET", "/debug").json()["client::"][0]["draining"]
        assert b'{"producers":[]}' == nsqlookupd.http("GET", "/nodes?for=producer").body


# Long polling.


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def waiting(nsqlookupd: NsqlookupdProcess) -> int:
    page = nsqlookupd.http("GET", "/metrics").body
    found = re.search(rb"^nsqlookupd_waiting_lookups (\d+)$", page, re.MULTILINE)
    assert found
    return int(found[1])


def ask_and_wait(
    pool: ThreadPoolExecutor, nsqlookupd: NsqlookupdProcess, topic: str, index: int
) -> "Future[FullResponse]":
    """Starts a lookup, and returns once it waits."""
    before = waiting(nsqlookupd)
    target = f"/lookup?topic={topic}&wait=30s&index={index}"
    answer = pool.submit(call, nsqlookupd, "GET", target)
    wait_until(lambda: waiting(nsqlookupd) > before, "the lookup to wait")
    return answer


def test_a_lookup_with_wait_or_index_gets_the_index(
    nsqlookupd: NsqlookupdProcess, topic: str
) -> None:
    nsqlookupd.post(f"/topic/create?topic={topic}")
    plain = call(nsqlookupd, "GET", f"/lookup?topic={topic}")
    first = call(nsqlookupd, "GET", f"/lookup?topic={topic}&index=0")
    second = call(nsqlookupd, "GET", f"/lookup?topic={topic}&wait=30s")
    unknown = call(nsqlookupd, "GET", f"/lookup?topic={topic}-not&index=7")

    assert json_headers(plain.body) == plain.headers
    index_header = ("X-Penstock-Index", str(first.index))
    assert json_headers(plain.body, index_header) == first.headers == second.headers
    assert plain.body == first.body == second.body
    assert (404, 0) == (unknown.status, unknown.index)


def test_a_lookup_waits_until_its_topic_exists(
    nsqlookupd: NsqlookupdProcess, topic: str, pool: ThreadPoolExecutor
) -> None:
    answer = ask_and_wait(pool, nsqlookupd, topic, 0)
    node = nsqlookupd.node("n")
    node.call(lookup_v1.register("another-" + topic[:40]))
    assert not answer.done()

    node.call(lookup_v1.register(topic, "c"))

    found = answer.result(60)
    assert 200 == found.status
    assert b'{"channels":["c"],"producers":[{"remote_address"' == found.body[:48]


def test_every_change_ends_a_wait(
    nsqlookupd: NsqlookupdProcess, topic: str, pool: ThreadPoolExecutor
) -> None:
    node, other = nsqlookupd.node("n"), nsqlookupd.node("other")
    node.call(lookup_v1.register(topic))
    changes: list[Callable[[], object]] = [
        lambda: other.call(lookup_v1.register(topic)),
        lambda: nsqlookupd.post(f"/channel/create?topic={topic}&channel=c"),
        lambda: node.call(lookup_v1.ping(draining=True)),
        lambda: nsqlookupd.post(f"/topic/tombstone?topic={topic}&node=n:4151"),
        lambda: other.call(lookup_v1.unregister(topic)),
        node.close,
        lambda: nsqlookupd.post(f"/channel/delete?topic={topic}&channel=c"),
        lambda: nsqlookupd.post(f"/topic/delete?topic={topic}"),
    ]

    index = call(nsqlookupd, "GET", f"/lookup?topic={topic}&index=0").index
    seen = {index}
    for change in changes:
        answer = ask_and_wait(pool, nsqlookupd, topic, index)
        change()
        index = answer.result(60).index
        assert index not in seen
        seen.add(index)

    assert 0 == index


def test_a_timeout_of_the_registry_ends_a_wait(topic: str) -> None:
    flags = ("--inactive-producer-timeout=8s", "--tombstone-lifetime=4s")
    with run_nsqlookupd(*flags) as nsqlookupd:
        nsqlookupd.node("n").call(lookup_v1.register(topic))
        nsqlookupd.post(f"/topic/tombstone?topic={topic}&node=n:4151")

        producers, index = [], 0
        for _ in range(3):
            target = f"/lookup?topic={topic}&wait=20s&index={index}"
            answer = call(nsqlookupd, "GET", target)
            index = answer.index
            producers.append(len(json.loads(answer.body)["producers"]))

        assert [0, 1, 0] == producers


def test_a_wait_ends_after_its_timeout(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    started = time.monotonic()
    unknown = call(nsqlookupd, "GET", f"/lookup?topic={topic}&wait=100ms")
    nsqlookupd.post(f"/topic/create?topic={topic}")
    known = call(nsqlookupd, "GET", f"/lookup?topic={topic}&index=0")
    again = call(nsqlookupd, "GET", f"/lookup?topic={topic}&wait=100ms&index={known.index}")

    assert time.monotonic() - started >= 0.2
    assert (404, 0) == (unknown.status, unknown.index)
    assert known == again


@pytest.mark.parametrize("flag", ["--max-lookup-wait=50ms", "--max-waiting-lookups=0"])
def test_waits_are_limited_in_time_and_in_number(flag: str, topic: str) -> None:
    with run_nsqlookupd(flag) as nsqlookupd:
        answer = call(nsqlookupd, "GET", f"/lookup?topic={topic}&wait=1h")

        assert (404, 0) == (answer.status, answer.index)


def test_the_wait_of_a_disconnected_client_ends_with_its_timeout(topic: str) -> None:
    with run_nsqlookupd("--max-lookup-wait=2s") as nsqlookupd:
        connection = HTTPConnection(nsqlookupd.http_address, timeout=60)
        connection.request("GET", f"/lookup?topic={topic}&wait=1m")
        wait_until(lambda: waiting(nsqlookupd) == 1, "the lookup to wait")
        connection.close()

        wait_until(lambda: waiting(nsqlookupd) == 0, "the wait to end")


# Metrics.


def test_prometheus_parses_all_metrics(
    nsqlookupd: NsqlookupdProcess,
) -> None:
    page = nsqlookupd.http("GET", "/metrics").body.decode()
    families = {family.name: family.type for family in text_string_to_metric_families(page)}

    assert {family.name.removesuffix("_total"): family.kind for family in FAMILIES} == families


def test_the_documentation_lists_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/nsqlookupd.md").read_text()
    rows = [
        f"| `{family.name}` | {', '.join(f'`{label}`' for label in family.labels)} "
        f"| {family.help} |\n"
        for family in FAMILIES
    ]

    assert "".join(rows) in page


def test_nodes_are_counted_by_their_state() -> None:
    with run_nsqlookupd() as nsqlookupd:
        active, draining = nsqlookupd.node("a"), nsqlookupd.node("b")
        active.call(lookup_v1.register("t", "c"))
        draining.call(lookup_v1.register("t", "d"))
        draining.call(lookup_v1.ping(draining=True))

        page = nsqlookupd.http("GET", "/metrics").body.decode()

        for line in (
            "nsqlookupd_topics 1",
            "nsqlookupd_channels 2",
            "nsqlookupd_registrations 2",
            'nsqlookupd_producers{state="active"} 1',
            'nsqlookupd_producers{state="draining"} 1',
            'nsqlookupd_producers{state="lost"} 0',
            'nsqlookupd_connections{protocol="tcp"} 2',
        ):
            assert f"\n{line}\n" in page
