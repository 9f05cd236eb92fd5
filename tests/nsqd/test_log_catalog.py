"""The catalog of all logs over HTTP: full and partial responses, and requests that wait."""

import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.nsqd.history_reading import log_of

from penstock.admin_api.models import TopicLogSummary, TopicsLogResponse
from penstock.common.go_json import decode_json
from penstock.nsqd.log_catalog import REMOVED_MAX, WAITING_MAX
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import TIMEOUT_SECONDS, wait_until

NODE_ID = 7


def catalog(nsqd: NsqdProcess, since: str = "", wait: str = "0") -> TopicsLogResponse:
    """The response of /topics/log."""
    answer = nsqd.http("GET", f"/topics/log?since={since}&wait={wait}")
    assert answer.status == 200, answer
    return decode_json(answer.body, TopicsLogResponse)


def names(response: TopicsLogResponse) -> list[str]:
    return sorted(each.topic for each in response.topics)


@contextmanager
def polling(nsqd: NsqdProcess, since: str, wait: str = "60s") -> Iterator[HTTPConnection]:
    """A request that nsqd has received, and whose response has not been read."""
    connection = HTTPConnection(nsqd.http_address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/topics/log?since={since}&wait={wait}")
        # nsqd reads connections in the order in which they become readable.
        assert nsqd.http("GET", "/ping").status == 200
        yield connection
    finally:
        connection.close()


def read(connection: HTTPConnection) -> TopicsLogResponse:
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return decode_json(body, TopicsLogResponse)


@pytest.fixture
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd(f"--node-id={NODE_ID}") as process:
        yield process


class TestResponses:
    def test_a_full_response_describes_all_persistent_topics(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a", b"b")
        nsqd.publish("empty#ephemeral", b"a")
        nsqd.post("/topic/create?topic=empty")
        response = catalog(nsqd)
        logs = {name: log_of(nsqd, name).whole for name in ("orders", "empty")}

        assert (NODE_ID, True, []) == (response.node_id, response.full, response.removed)
        assert {
            name: TopicLogSummary(
                topic=name,
                log_id=log["log_id"],
                first_seq=log["first_seq"],
                next_seq=log["next_seq"],
                high_watermark=log["next_seq"],
                bytes=log["bytes"],
            )
            for name, log in logs.items()
        } == {each.topic: each for each in response.topics}
        assert re.fullmatch("[0-9a-f]{32}", response.topics[0].log_id)

    def test_the_fields_in_json(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        whole = nsqd.http("GET", "/topics/log").json()

        assert ["node_id", "version", "full", "topics", "removed"] == list(whole)
        assert ["topic", "log_id", "first_seq", "next_seq", "high_watermark", "bytes"] == list(
            whole["topics"][0]
        )

    def test_a_partial_response_has_only_the_changes(self, nsqd: NsqdProcess) -> None:
        for name in ("grown", "idle", "deleted", "created-again"):
            nsqd.publish(name, b"a")
        before = catalog(nsqd)
        nsqd.publish("grown", b"b")
        nsqd.publish("new", b"a")
        nsqd.post("/topic/delete?topic=deleted")
        nsqd.post("/topic/delete?topic=created-again")
        nsqd.publish("created-again", b"b")
        after = catalog(nsqd, before.version)

        assert not after.full
        assert ["created-again", "grown", "new"] == names(after)
        assert ["deleted"] == after.removed
        log_ids = [
            {each.topic: each.log_id for each in response.topics}["created-again"]
            for response in (before, after)
        ]
        assert log_ids[0] != log_ids[1]

    def test_without_changes_a_response_is_empty(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        before = catalog(nsqd)
        after = catalog(nsqd, before.version)

        assert (before.version, False, [], []) == (
            after.version,
            after.full,
            after.topics,
            after.removed,
        )

    def test_an_old_token_can_be_used_again(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("a", b"1")
        first = catalog(nsqd)
        nsqd.publish("b", b"1")
        second = catalog(nsqd, first.version)
        nsqd.publish("c", b"1")

        assert ["b", "c"] == names(catalog(nsqd, first.version))
        assert ["c"] == names(catalog(nsqd, second.version))

    @pytest.mark.parametrize(
        "change", [str.upper, lambda token: token + "0", lambda _: "-0", lambda _: "x"]
    )
    def test_an_unknown_token_gets_a_full_response(
        self, nsqd: NsqdProcess, change: Callable[[str], str]
    ) -> None:
        nsqd.publish("orders", b"a")
        response = catalog(nsqd, change(catalog(nsqd).version + "ab"), "60s")

        assert (True, ["orders"]) == (response.full, names(response))

    def test_a_token_of_an_earlier_run_gets_a_full_response(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        before = catalog(nsqd)
        nsqd.restart()
        after = catalog(nsqd, before.version, "60s")

        assert after.full
        assert before.topics == after.topics

    def test_a_token_from_before_too_many_deletions_gets_a_full_response(
        self, nsqd: NsqdProcess
    ) -> None:
        nsqd.publish("kept", b"a")
        before = catalog(nsqd)
        connection = HTTPConnection(nsqd.http_address, timeout=TIMEOUT_SECONDS)

        def post(target: str) -> None:
            connection.request("POST", target)
            response = connection.getresponse()
            assert (200, b"") == (response.status, response.read())

        with closing(connection):
            for number in range(REMOVED_MAX):
                post(f"/topic/create?topic=t{number}")
            middle = catalog(nsqd)
            for number in range(REMOVED_MAX):
                post(f"/topic/delete?topic=t{number}")
            assert REMOVED_MAX == len(catalog(nsqd, middle.version).removed)
            post("/topic/create?topic=one-more")
            last = catalog(nsqd)
            post("/topic/delete?topic=one-more")

        assert ["one-more"] == catalog(nsqd, last.version).removed
        for token in (before.version, middle.version):
            response = catalog(nsqd, token)
            assert (True, ["kept"], []) == (response.full, names(response), response.removed)

    def test_trimmed_topics_have_changed(self) -> None:
        with run_nsqd("--max-bytes-per-file=1024", "--retention-time=24h") as nsqd:
            nsqd.publish("orders", *[bytes(1000)] * 5)
            nsqd.publish("other", b"a")
            before = catalog(nsqd)
            with polling(nsqd, before.version) as poll:
                nsqd.consumer("orders", "archive")  # Its start does not change the log.
                nsqd.post("/channel/empty?topic=orders&channel=archive")
                nsqd.post("/topic/retention?topic=orders&time=0&bytes=0")
                after = read(poll)

            assert ["orders"] == names(after)
            old = next(each for each in before.topics if each.topic == "orders")
            assert old.first_seq < after.topics[0].first_seq
            assert old.bytes > after.topics[0].bytes
            assert old.next_seq == after.topics[0].next_seq

    @pytest.mark.parametrize("wait", ["60.1s", "2m", "-1s", "10", "soon", ""])
    def test_an_invalid_wait_is_refused(self, nsqd: NsqdProcess, wait: str) -> None:
        answer = nsqd.http("GET", f"/topics/log?wait={wait}")

        assert (400, {"message": "INVALID_ARG_WAIT"}) == (answer.status, answer.json())


class TestWaiting:
    def test_it_ends_when_a_topic_grows(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        nsqd.publish("idle", b"a")
        before = catalog(nsqd)
        for _ in range(3):
            with polling(nsqd, before.version) as poll:
                nsqd.publish("orders", b"b")
                after = read(poll)
            assert (False, ["orders"]) == (after.full, names(after))
            assert before.topics != after.topics
            before = after

    def test_it_ends_when_a_topic_is_created(self, nsqd: NsqdProcess) -> None:
        with polling(nsqd, catalog(nsqd).version) as poll:
            nsqd.post("/topic/create?topic=orders")
            assert ["orders"] == names(read(poll))

    def test_it_ends_when_a_topic_is_deleted(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        with polling(nsqd, catalog(nsqd).version) as poll:
            nsqd.post("/topic/delete?topic=orders")
            after = read(poll)

        assert ([], ["orders"]) == (after.topics, after.removed)

    def test_it_ends_when_a_new_topic_grows(self, nsqd: NsqdProcess) -> None:
        with polling(nsqd, catalog(nsqd).version) as poll:
            nsqd.publish("orders", b"a")
            created = read(poll)
        # The publish may be part of the first response, or of the next one.
        with polling(nsqd, catalog(nsqd, created.version).version) as poll:
            nsqd.publish("orders", b"b")
            assert ["orders"] == names(read(poll))

    def test_other_changes_do_not_end_it(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        before = catalog(nsqd)
        with polling(nsqd, before.version, "500ms") as poll:
            nsqd.post("/channel/create?topic=orders&channel=archive")
            nsqd.publish("x#ephemeral", b"a")
            after = read(poll)

        assert (before.version, []) == (after.version, after.topics)

    def test_it_ends_after_its_time(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        before = catalog(nsqd)
        after = catalog(nsqd, before.version, "50ms")

        assert (False, [], []) == (after.full, after.topics, after.removed)
        assert ["orders"] == names(catalog(nsqd))

    def test_several_clients_get_the_same_changes(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        version = catalog(nsqd).version
        with polling(nsqd, version) as one, polling(nsqd, version) as other:
            nsqd.publish("orders", b"b")
            first, second = read(one), read(other)

        assert first == second
        assert ["orders"] == names(first)

    def test_a_request_without_wait_does_not_hide_changes_from_one_that_waits(
        self, nsqd: NsqdProcess
    ) -> None:
        nsqd.publish("orders", b"a")
        version = catalog(nsqd).version
        with polling(nsqd, version) as poll:
            nsqd.publish("orders", b"b")
            middle = catalog(nsqd, version)
            after = read(poll)

        assert middle.topics == after.topics

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_ends_when_nsqd_stops(self, number: signal.Signals) -> None:
        with run_nsqd() as nsqd:
            nsqd.publish("orders", b"a")
            before = catalog(nsqd)
            with polling(nsqd, before.version) as poll:
                nsqd.send_signal(number)
                after = read(poll)
                assert 0 == nsqd.wait()

        assert (before.version, False, []) == (after.version, after.full, after.topics)

    def test_it_ends_when_nsqd_starts_to_drain(self, nsqd: NsqdProcess) -> None:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=archive")
        nsqd.publish("orders", b"a")  # not consumed: nsqd keeps draining
        before = catalog(nsqd)
        with polling(nsqd, before.version) as poll:
            nsqd.post("/drain")
            after = read(poll)
        assert (before.version, []) == (after.version, after.topics)

        # A request that comes later waits as usual.
        with polling(nsqd, before.version) as poll:
            nsqd.post("/topic/delete?topic=orders")
            assert ["orders"] == read(poll).removed
        assert 0 == nsqd.wait()

    def test_the_number_of_waiting_requests_is_limited(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("orders", b"a")
        version = catalog(nsqd).version
        target = f"/topics/log?since={version}&wait=60s"
        with ExitStack() as stack:
            polls = [stack.enter_context(polling(nsqd, version)) for _ in range(WAITING_MAX)]
            refused = HTTPConnection(nsqd.http_address, timeout=TIMEOUT_SECONDS)
            stack.callback(refused.close)
            refused.request("GET", target)
            response = refused.getresponse()
            assert (503, "1") == (response.status, response.getheader("Retry-After"))
            assert b'{"message":"TOO_MANY_READERS"}' == response.read()
            # Without waiting, and for history, there is room.
            assert [] == catalog(nsqd, version).topics
            messages = nsqd.http("GET", "/topic/messages?topic=orders&follow=true&limit=1")
            assert 200 == messages.status
            polls.pop().close()  # nsqd notices, although it sends nothing.

            def has_room() -> bool:
                return nsqd.http("GET", target.replace("60s", "1ms")).status == 200

            wait_until(has_room, "room for another request")

    def test_a_client_that_only_closes_its_side_gets_a_response(self, nsqd: NsqdProcess) -> None:
        before = catalog(nsqd)
        host, _, port = nsqd.http_address.rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as client:
            target = f"/topics/log?since={before.version}&wait=60s"
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: nsqd\r\n\r\n".encode())
            client.shutdown(socket.SHUT_WR)
            received = b""
            while piece := client.recv(65536):
                received += piece

        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f'"version":"{before.version}"'.encode() in received

    def test_a_busy_topic_among_many(self, nsqd: NsqdProcess) -> None:
        """A client that polls 1,000 topics while some of them grow misses no message."""
        for number in range(1000):
            nsqd.post(f"/topic/create?topic=t{number}")
        response = catalog(nsqd)
        state = {each.topic: each for each in response.topics}
        assert 1000 == len(state)

        def publish() -> None:
            for number in range(200):
                nsqd.publish(f"t{number % 20}", b"a", b"b")

        def is_complete() -> bool:
            grown = sum(each.next_seq - each.first_seq for each in state.values())
            return grown == 400

        deadline = time.monotonic() + TIMEOUT_SECONDS
        with ThreadPoolExecutor(1) as threads:
            publishing: Future[Any] = threads.submit(publish)
            while not is_complete() and time.monotonic() < deadline:
                response = catalog(nsqd, response.version, "10s")
                assert not response.full
                assert len(response.topics) <= 20
                state.update({each.topic: each for each in response.topics})
            publishing.result()

        assert is_complete()
        assert {each.topic: each for each in catalog(nsqd).topics} == state
