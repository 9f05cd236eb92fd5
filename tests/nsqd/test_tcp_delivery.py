"""Delivery of messages, and FIN and REQ, with a running nsqd."""

import re
import time
from collections.abc import Iterator

import pytest

from penstock.protocol import commands
from penstock.protocol.frames import MessageFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import WireError
from penstock.testing.waiting import wait_until

# Time without a message after which a test is sure that none comes.
SILENCE_SECONDS = 0.15


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


def bodies(messages: list[MessageFrame]) -> list[bytes]:
    return [message.body for message in messages]


# RDY ----------------------------------------------------------------------------------------------


def test_a_message_is_delivered_unchanged(nsqd: NsqdProcess, topic: str) -> None:
    before_ns = time.time_ns()
    nsqd.publish(topic, b"\x00body\xff")
    after_ns = time.time_ns()

    message = nsqd.consumer(topic, "c").message()

    assert (1, b"\x00body\xff") == (message.attempts, message.body)
    assert before_ns <= message.timestamp_ns <= after_ns
    assert re.fullmatch(rb"[0-9a-f]{16}", message.id)


def test_nothing_is_delivered_before_rdy(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = nsqd.consumer(topic, "c", rdy=0)

    assert client.is_silent(seconds=SILENCE_SECONDS)

    client.send(commands.rdy(1))

    assert b"x" == client.message().body


def test_rdy_limits_the_messages_in_flight(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, *b"1 2 3 4 5".split())
    client = nsqd.consumer(topic, "c", rdy=2)

    first, second = client.messages(2)

    assert [b"1", b"2"] == bodies([first, second])
    assert client.is_silent(seconds=SILENCE_SECONDS)

    client.send(commands.fin(second.id))

    assert b"3" == client.message().body
    assert client.is_silent(seconds=SILENCE_SECONDS)

    client.send(commands.rdy(1), commands.fin(first.id))  # one message is still in flight

    assert client.is_silent(seconds=SILENCE_SECONDS)


def test_rdy_without_a_count_is_one(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"1", b"2")
    client = nsqd.consumer(topic, "c", rdy=0)
    client.send(b"RDY\n")

    assert b"1" == client.message().body
    assert client.is_silent(seconds=SILENCE_SECONDS)


@pytest.mark.parametrize("rdy_none", [b"RDY 0\n", b"RDY \n"])
def test_rdy_zero_stops_delivery(nsqd: NsqdProcess, topic: str, rdy_none: bytes) -> None:
    nsqd.publish(topic, b"1", b"2")
    client = nsqd.consumer(topic, "c")
    message = client.message()
    client.send(rdy_none, commands.fin(message.id))

    assert client.is_silent(seconds=SILENCE_SECONDS)


def test_first_deliveries_come_in_publish_order(nsqd: NsqdProcess, topic: str) -> None:
    count = 12_000  # more than the memory queue
    numbers = [b"%d" % number for number in range(count)]
    producer = nsqd.connect()
    for start in range(0, count, 500):
        producer.call(commands.mpub(topic, numbers[start : start + 500]))
    client = nsqd.consumer(topic, "c", rdy=2500)
    received: list[bytes] = []
    while len(received) < count:
        message = client.message()
        received.append(message.body)
        client.send(commands.fin(message.id))

    assert numbers == received


def test_delivery_works_with_a_memory_queue_of_0(topic: str) -> None:
    with run_nsqd("--mem-queue-size=0") as nsqd:
        nsqd.publish(topic, *b"1 2 3".split())
        client = nsqd.consumer(topic, "c")
        received = []
        for _ in range(3):
            message = client.message()
            received.append(message.body)
            client.send(commands.fin(message.id))
        client.call(commands.dpub(topic, 10, b"deferred"))
        message = client.message()
        client.send(commands.req(message.id, 0))

        assert [b"1", b"2", b"3"] == received
        assert (2, b"deferred") == (client.message().attempts, message.body)


# Channels -----------------------------------------------------------------------------------------


def test_every_channel_gets_every_message(nsqd: NsqdProcess, topic: str) -> None:
    clients = [nsqd.consumer(topic, channel) for channel in ("a", "b", "c#ephemeral")]
    nsqd.publish(topic, b"x")

    assert [b"x"] * 3 == [client.message().body for client in clients]


def test_the_first_channel_gets_the_backlog_and_later_ones_only_new_messages(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"old")
    first = nsqd.consumer(topic, "first", rdy=10)
    second = nsqd.consumer(topic, "second", rdy=10)
    nsqd.publish(topic, b"new")

    assert [b"old", b"new"] == bodies(first.messages(2))
    assert b"new" == second.message().body


def test_consumers_of_one_channel_share_its_messages(nsqd: NsqdProcess, topic: str) -> None:
    clients = [nsqd.consumer(topic, "c", rdy=5) for _ in range(2)]
    nsqd.publish(topic, *(b"%d" % number for number in range(10)))

    received = [bodies(client.messages(5)) for client in clients]

    assert {b"%d" % number for number in range(10)} == {*received[0], *received[1]}


def test_one_connection_may_publish_and_consume(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.consumer(topic, "c")
    client.call(commands.pub("elsewhere", b"x"))
    client.send(commands.pub(topic, b"mine"))

    assert {b"OK", b"mine"} == {frame[-1] for frame in (client.next_frame(), client.next_frame())}


def test_an_ephemeral_channel_is_deleted_with_its_last_consumer(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"for the first channel")
    first = nsqd.consumer(topic, "e#ephemeral", rdy=0)
    second = nsqd.consumer(topic, "e#ephemeral", rdy=0)
    first.close()
    wait_until(lambda: 1 == nsqd.stats(topic)["channels"][0]["client_count"], "the first to leave")
    second.close()

    wait_until(lambda: [] == nsqd.stats(topic)["channels"], "the channel to be deleted")


def test_an_ephemeral_topic_is_deleted_with_its_last_channel(nsqd: NsqdProcess, topic: str) -> None:
    name = f"{topic}#ephemeral"
    client = nsqd.consumer(name, "c#ephemeral")
    nsqd.publish(name, b"x")

    assert b"x" == client.message().body

    client.close()

    def is_gone() -> bool:
        stats = nsqd.http("GET", f"/stats?format=json&topic={topic}%23ephemeral").json()
        return stats["topics"] is None

    wait_until(is_gone, "the topic to be deleted")


# FIN, REQ -----------------------------------------------------------------------------------------


def test_requeued_message_goes_to_the_tail(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"a", b"b", b"c")
    client = nsqd.consumer(topic, "c")
    message = client.message()
    client.send(commands.req(message.id, 0))
    received = [message.body]
    for _ in range(3):
        message = client.message()
        client.send(commands.fin(message.id))
        received.append(message.body)

    assert [b"a", b"b", b"c", b"a"] == received
    assert 2 == message.attempts
    assert nsqd.shows(topic, "c", requeue_count=1)


def test_redelivery_keeps_timestamp_and_id_and_counts_attempts(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = nsqd.consumer(topic, "c")
    first = client.message()
    client.send(commands.req(first.id, 0))
    second = client.message()
    client.send(commands.req(second.id, 0))

    assert first._replace(attempts=3) == client.message()


def test_message_requeued_with_a_delay_is_counted_as_deferred(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = nsqd.consumer(topic, "c")
    client.send(commands.req(client.message().id, 3_600_000))

    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=1), "it to be deferred")
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, requeue_count=1)


def test_a_second_fin_is_refused_without_other_effect(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"1", b"2")
    client = nsqd.consumer(topic, "c")
    first = client.message()
    client.send(commands.fin(first.id), commands.fin(first.id))

    frames = {frame[-1] for frame in (client.next_frame(), client.next_frame())}

    assert {f"FIN {first.id.decode()} failed ID not in flight", b"2"} == frames


@pytest.mark.parametrize("word", ["FIN", "REQ", "TOUCH"])
def test_only_the_consumer_that_has_a_message_may_answer_it(
    nsqd: NsqdProcess, topic: str, word: str
) -> None:
    nsqd.publish(topic, b"x")
    owner = nsqd.consumer(topic, "c")
    message = owner.message()
    other = nsqd.consumer(topic, "c")
    command = {
        "FIN": commands.fin(message.id),
        "REQ": commands.req(message.id, 0),
        "TOUCH": commands.touch(message.id),
    }
    with pytest.raises(WireError) as refusal:
        other.call(command[word])

    expected = f"{word} {message.id.decode()} failed client does not own message"
    assert (f"E_{word}_FAILED", expected) == (refusal.value.code, refusal.value.detail)
    assert b"OK" == other.call(commands.pub("elsewhere", b"still connected"))


# Sampling -----------------------------------------------------------------------------------------


def test_sample_rate_delivers_that_percentage(topic: str) -> None:
    """The other messages are dropped. NSQ delivers one percent more than requested, which would be
    ten standard deviations off.
    """
    count, expected, deviation = 100_000, 10_000, 95
    with run_nsqd(f"--max-rdy-count={count}") as nsqd:
        client = nsqd.connect()
        client.identify(sample_rate=10)
        client.subscribe(topic, "c", rdy=count)
        producer = nsqd.connect()
        for _ in range(count // 1000):
            producer.call(commands.mpub(topic, [b"x"] * 1000))
        wait_until(lambda: nsqd.shows(topic, "c", depth=0, message_count=count), "all to be gone")
        received = nsqd.stats(topic, "c")["in_flight_count"]

        assert received == pytest.approx(expected, abs=5 * deviation)
        assert received == len({message.id for message in client.messages(received)})


def test_message_timeout_can_be_negotiated(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = nsqd.connect()
    client.identify(msg_timeout=1000)
    began = time.monotonic()
    client.subscribe(topic, "c", rdy=1)
    client.message()

    assert 2 == client.message(seconds=40).attempts  # nsqd's own timeout is a minute
    assert began + 1.0 <= time.monotonic()
