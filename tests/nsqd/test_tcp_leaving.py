"""Consumers that disconnect, and operators that delete, empty and pause, with a running nsqd."""

import time
from collections.abc import Iterator

import pytest

from penstock.protocol import commands
from penstock.protocol.frames import MessageFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import DisconnectedError, WireError
from penstock.testing.waiting import wait_until

# Time without a message after which a test is sure that none comes.
SILENCE_SECONDS = 0.15


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


def bodies(messages: list[MessageFrame]) -> list[bytes]:
    return [message.body for message in messages]


def refusal(nsqd: NsqdProcess, path: str) -> tuple[int, str]:
    answer = nsqd.http("POST", path)
    return answer.status, answer.json()["message"]


# Consumers that disconnect ------------------------------------------------------------------------


def test_messages_of_a_lost_consumer_go_to_another_at_once(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"1", b"2", b"3")
    lost = nsqd.consumer(topic, "c", rdy=3)
    other = nsqd.consumer(topic, "c", rdy=3)
    lost.messages(3)
    lost.close()

    received = other.messages(3, seconds=40)  # the message timeout is a minute

    assert [(2, b"1"), (2, b"2"), (2, b"3")] == [(each.attempts, each.body) for each in received]
    assert nsqd.shows(topic, "c", timeout_count=3, requeue_count=0, client_count=1)


def test_messages_of_a_consumer_with_a_protocol_error_are_requeued_at_once(
    nsqd: NsqdProcess, topic: str
) -> None:
    """nsqd keeps reading for a while, so that the client can read the error."""
    nsqd.publish(topic, b"1")
    bad = nsqd.consumer(topic, "c", rdy=10)
    other = nsqd.consumer(topic, "c", rdy=10)
    bad.message()
    with pytest.raises(WireError, match="E_INVALID"):
        bad.call(b"NONSENSE\n")
    nsqd.publish(topic, b"2")

    assert [b"1", b"2"] == bodies(other.messages(2, seconds=40))
    assert nsqd.shows(topic, "c", timeout_count=1, requeue_count=0)


def test_messages_of_a_disconnected_consumer_are_requeued_at_once(
    nsqd: NsqdProcess, topic: str
) -> None:
    """The consumer has not answered, nor read all its messages."""
    nsqd.publish(topic, *[bytes(10_000)] * 300)
    stuck = nsqd.consumer(topic, "c", rdy=300)
    wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=300), "all to be in flight")
    other = nsqd.consumer(topic, "c", rdy=0)
    shown = {each["remote_address"]: each for each in nsqd.stats(topic, "c")["clients"]}
    connect_ts = shown[stuck.local_address]["connect_ts"]
    path = f"/client/close?remote_address={stuck.local_address}"

    assert (404, "CLIENT_NOT_FOUND") == refusal(nsqd, f"{path}&connect_ts={connect_ts - 1}")
    nsqd.post(f"{path}&connect_ts={connect_ts}")
    other.send(commands.rdy(300))

    assert {2} == {each.attempts for each in other.messages(300)}
    assert (404, "CLIENT_NOT_FOUND") == refusal(nsqd, path)
    with pytest.raises((DisconnectedError, ConnectionResetError)):
        stuck.messages(301)


@pytest.mark.parametrize(
    ("query", "code"),
    {
        "": "MISSING_ARG_REMOTE_ADDRESS",
        "remote_address=1.2.3.4:5&connect_ts=yesterday": "INVALID_ARG_CONNECT_TS",
    }.items(),
)
def test_an_invalid_disconnect_request_is_refused(nsqd: NsqdProcess, query: str, code: str) -> None:
    assert (400, code) == refusal(nsqd, f"/client/close?{query}")


def test_messages_of_a_lost_consumer_can_wait_for_their_timeout(topic: str) -> None:
    with run_nsqd("--requeue-on-disconnect=false", "--msg-timeout=3s") as nsqd:
        nsqd.publish(topic, b"x")
        began = time.monotonic()
        lost = nsqd.consumer(topic, "c")
        lost.message()
        lost.close()
        wait_until(lambda: nsqd.shows(topic, "c", client_count=0), "it to be lost")

        assert nsqd.shows(topic, "c", in_flight_count=1)

        other = nsqd.consumer(topic, "c")

        assert 2 == other.message().attempts
        assert time.monotonic() >= began + 3.0
        assert nsqd.shows(topic, "c", timeout_count=1)


def test_messages_belong_to_the_connection_and_not_to_the_client(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    old = nsqd.consumer(topic, "c")
    message = old.message()
    old.close()
    new = nsqd.consumer(topic, "c", rdy=0)
    wait_until(lambda: nsqd.shows(topic, "c", depth=1), "it to come back")

    with pytest.raises(WireError, match="E_FIN_FAILED"):
        new.call(commands.fin(message.id))


def test_cls_ends_deliveries_and_nothing_else(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"1", b"2", b"3", b"4")
    client = nsqd.consumer(topic, "c", rdy=3)
    first, second, third = client.messages(3)

    assert b"CLOSE_WAIT" == client.call(commands.cls())

    client.send(
        commands.rdy(10), commands.fin(first.id), commands.req(second.id, 0),
        commands.touch(third.id), commands.fin(third.id),
    )  # fmt: skip

    assert b"OK" == client.call(commands.pub("elsewhere", b"x"))
    assert client.is_silent(seconds=SILENCE_SECONDS)
    assert nsqd.shows(topic, "c", depth=2, in_flight_count=0, client_count=1)
    assert {b"4", b"2"} == set(bodies(nsqd.consumer(topic, "c", rdy=2).messages(2)))


# Operator actions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["channel", "topic"])
def test_a_deletion_closes_consumers_without_a_response(
    nsqd: NsqdProcess, topic: str, what: str
) -> None:
    client = nsqd.consumer(topic, "c")
    producer = nsqd.connect()
    producer.call(commands.pub(topic, b"x"))
    client.message()
    nsqd.post(f"/{what}/delete?topic={topic}&channel=c")

    assert b"" == client.read_to_end()
    assert b"OK" == producer.call(commands.pub(topic, b"a publisher stays"))


def test_a_deleted_topic_can_be_created_again_empty(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"old")
    nsqd.post(f"/topic/delete?topic={topic}")
    nsqd.publish(topic, b"new")
    client = nsqd.consumer(topic, "c", rdy=10)

    assert b"new" == client.message().body
    assert client.is_silent(seconds=SILENCE_SECONDS)


def test_an_emptied_channel_drops_messages_in_flight_and_delivers_new_ones(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"1", b"2", b"3")
    with nsqd.connect() as producer:
        producer.call(commands.dpub(topic, 60_000, b"deferred"))
    client = nsqd.consumer(topic, "c", rdy=2)
    first, _ = client.messages(2)
    nsqd.post(f"/channel/empty?topic={topic}&channel=c")

    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    with pytest.raises(WireError, match="E_FIN_FAILED"):
        client.call(commands.fin(first.id))

    nsqd.publish(topic, b"4", b"5")

    assert [b"4", b"5"] == bodies(client.messages(2))


def test_a_paused_channel_delivers_nothing_and_accepts_fins(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"1", b"2")
    client = nsqd.consumer(topic, "c")
    message = client.message()
    nsqd.post(f"/channel/pause?topic={topic}&channel=c")
    client.send(commands.fin(message.id))
    nsqd.publish(topic, b"3")

    assert client.is_silent(seconds=SILENCE_SECONDS)
    assert nsqd.shows(topic, "c", depth=2, in_flight_count=0, paused=True)

    nsqd.post(f"/channel/unpause?topic={topic}&channel=c")

    assert b"2" == client.message().body


def test_a_paused_topic_keeps_new_messages_while_its_channels_deliver(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"1", b"2")
    client = nsqd.consumer(topic, "c")
    message = client.message()
    nsqd.post(f"/topic/pause?topic={topic}")
    nsqd.publish(topic, b"3")
    client.send(commands.fin(message.id))
    message = client.message()

    assert b"2" == message.body

    client.send(commands.fin(message.id))

    assert client.is_silent(seconds=SILENCE_SECONDS)
    assert 1 == nsqd.stats(topic)["depth"]

    nsqd.post(f"/topic/unpause?topic={topic}")

    assert b"3" == client.message().body
