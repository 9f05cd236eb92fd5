"""Listing the messages of a channel, and cancelling or requeuing one of them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.nsqd.history import PEEK_LIMIT_MAX
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import WireError
from penstock.testing.waiting import wait_until

MINUTE_NS = 60 * 10**9


@pytest.fixture(scope="module", params=["10000", "0"], ids=lambda size: f"mem-queue-size {size}")
def nsqd(request: pytest.FixtureRequest) -> Iterator[NsqdProcess]:
    """With the messages in memory, and on disk."""
    with run_nsqd(f"--mem-queue-size={request.param}") as process:
        process.post("/topic/create?topic=known")
        process.post("/channel/create?topic=known&channel=c")
        yield process


def peek(nsqd: NsqdProcess, topic: str, query: str = "") -> list[dict[str, Any]]:
    answer = nsqd.http("GET", f"/channel/messages?topic={topic}&channel=c{query}")
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def bodies(nsqd: NsqdProcess, topic: str, query: str = "") -> str:
    return "".join(message["body"] for message in peek(nsqd, topic, query))


def prepare(nsqd: NsqdProcess, topic: str, letters: str = "") -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.publish(topic, *(letter.encode() for letter in letters))


def defer(nsqd: NsqdProcess, topic: str, body: bytes, minutes: int) -> None:
    nsqd.post(f"/pub?topic={topic}&defer={minutes * 60_000}", body)


def refusal(nsqd: NsqdProcess, path: str) -> tuple[int, str]:
    answer = nsqd.http("POST", path)
    return answer.status, answer.json()["message"]


def test_queued_messages_are_listed_in_order_and_stay(nsqd: NsqdProcess, topic: str) -> None:
    prepare(nsqd, topic, "abcde")

    assert "abcde" == bodies(nsqd, topic)
    assert "ab" == bodies(nsqd, topic, "&state=queued&limit=2")
    assert {0} == {message["attempts"] for message in peek(nsqd, topic)}
    assert [b"a", b"b"] == [each.body for each in nsqd.consumer(topic, "c", rdy=2).messages(2)]
    assert "cde" == bodies(nsqd, topic)


def test_messages_in_flight_have_their_client_and_deadline(nsqd: NsqdProcess, topic: str) -> None:
    prepare(nsqd, topic, "ab")
    consumer = nsqd.connect()
    consumer.identify(client_id="worker-3", msg_timeout=60_000)
    consumer.subscribe(topic, "c", rdy=1)
    consumer.send(commands.req(consumer.message().id, 0))
    again = consumer.message()
    (message,) = peek(nsqd, topic, "&state=inflight")

    assert again.id.decode() == message["id"]
    assert (again.attempts, "worker-3") == (message["attempts"], message["client_id"])
    assert message["client_address"].startswith("127.0.0.1:")
    assert 0 < message["deadline_ns"] - message["timestamp_ns"] - MINUTE_NS < MINUTE_NS
    assert 1 == len(peek(nsqd, topic))


def test_deferred_messages_are_listed_in_the_order_of_their_due_times(
    nsqd: NsqdProcess, topic: str
) -> None:
    prepare(nsqd, topic)
    defer(nsqd, topic, b"later", 2)
    defer(nsqd, topic, b"sooner", 1)
    nsqd.consumer(topic, "c", rdy=1)  # so that the channel reads from the log
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=2), "both to be deferred")
    first, second = peek(nsqd, topic, "&state=deferred")

    assert ("sooner", "later") == (first["body"], second["body"])
    assert first["timestamp_ns"] + MINUTE_NS == first["due_ns"]
    assert [first] == peek(nsqd, topic, "&state=deferred&limit=1")


@pytest.mark.crash
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "still in the log"])
def test_a_cancelled_message_is_not_delivered(topic: str, is_read: bool) -> None:
    with run_nsqd("--mem-queue-size=0") as nsqd:
        prepare(
            nsqd, topic, "x"
        )  # the memory queue is full: the channel reads from the log from here on
        defer(nsqd, topic, b"cancelled", 1)
        defer(nsqd, topic, b"kept", 1)
        if is_read:
            nsqd.consumer(topic, "c", rdy=2).message()
            wait_until(lambda: nsqd.shows(topic, "c", deferred_count=2), "both to be deferred")
        seen = peek(nsqd, topic, "&state=deferred")
        ids = {message["body"]: message["id"] for message in seen}
        cancel = f"/channel/cancel?topic={topic}&channel=c&id={ids['cancelled']}"
        nsqd.post(cancel)
        nsqd.kill()
        nsqd.restart()

        assert 404 == nsqd.http("POST", cancel).status
        assert b"x" == nsqd.consumer(topic, "c", rdy=2).message().body
        wait_until(lambda: nsqd.shows(topic, "c", deferred_count=1, depth=0), "one to be deferred")
        assert [ids["kept"]] == [each["id"] for each in peek(nsqd, topic, "&state=deferred")]


def test_only_deferred_messages_can_be_cancelled(nsqd: NsqdProcess, topic: str) -> None:
    prepare(nsqd, topic, "a")
    (message,) = peek(nsqd, topic)
    path = f"/channel/cancel?topic={topic}&channel=c"
    # The second id is that of the same message on another node.
    for message_id in (message["id"], f"{int(message['id'], 16) ^ 1 << 60:016x}"):
        assert (404, "MESSAGE_NOT_FOUND") == refusal(nsqd, f"{path}&id={message_id}")

    assert "a" == bodies(nsqd, topic)


def test_a_message_is_requeued_in_any_state(nsqd: NsqdProcess, topic: str) -> None:
    prepare(nsqd, topic, "a")
    stuck = nsqd.consumer(topic, "c", rdy=1)
    defer(nsqd, topic, b"b", 1)
    held = stuck.message()
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=1), "one to be deferred")
    (waiting,) = peek(nsqd, topic, "&state=deferred")
    other = nsqd.consumer(topic, "c", rdy=2)
    stuck.send(commands.rdy(0))
    for message_id in (held.id.decode(), waiting["id"]):
        nsqd.post(f"/channel/requeue?topic={topic}&channel=c&id={message_id}")
    again, hastened = other.messages(2)

    assert (held.id, b"a", 2) == (again.id, again.body, again.attempts)
    assert (b"b", 1) == (hastened.body, hastened.attempts)
    with pytest.raises(WireError, match="E_FIN_FAILED"):
        stuck.call(commands.fin(held.id))
    assert nsqd.shows(topic, "c", requeue_count=1, deferred_count=0, in_flight_count=2)
    other.send(commands.fin(again.id))
    wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=1), "one to be finished")
    path = f"/channel/requeue?topic={topic}&channel=c&id={again.id.decode()}"
    assert (404, "MESSAGE_NOT_FOUND") == refusal(nsqd, path)


REFUSALS = {
    "GET /channel/messages?topic=known": "MISSING_ARG_CHANNEL",
    "GET /channel/messages?topic=known&channel=c&state=lost": "INVALID_ARG_STATE",
    "GET /channel/messages?topic=known&channel=c&limit=0": "INVALID_ARG_LIMIT",
    f"GET /channel/messages?topic=known&channel=c&limit={PEEK_LIMIT_MAX + 1}": "INVALID_ARG_LIMIT",
    "POST /channel/cancel?topic=known&channel=c": "MISSING_ARG_ID",
    "POST /channel/cancel?topic=known&channel=c&id=7": "INVALID_ARG_ID",
    "POST /channel/cancel?topic=known&channel=c&id=ABCDEF0123456789": "INVALID_ARG_ID",
    "POST /channel/requeue?topic=known&channel=c": "MISSING_ARG_ID",
    "POST /channel/requeue?topic=known&channel=c&id=7": "INVALID_ARG_ID",
}


@pytest.mark.parametrize("call", REFUSALS)
def test_invalid_arguments_are_refused(nsqd: NsqdProcess, call: str) -> None:
    method, target = call.split()
    answer = nsqd.http(method, target)

    assert (400, REFUSALS[call]) == (answer.status, answer.json()["message"])
