"""Timeouts, deferrals and TOUCH, with a running nsqd.

A timer must fire, and not before it is due. How late it fires depends on the machine; `python -m
bench --only deferred` measures that. Tests with a manual clock (tests/broker) check when each timer
is set.
"""

import select
import time
from collections.abc import Iterator

import pytest
from tests.nsqd.off_disk import run_nsqd_off_disk

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.waiting import wait_until

# Short, so that the tests are fast.
FLAGS = ("--msg-timeout=300ms", "--max-req-timeout=5s")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd_off_disk(*FLAGS) as process:
        yield process


# Long enough to act before it ends, even on a busy machine.
TIMEOUT_MS = 3_000

# Longer than any test.
NO_TIMEOUT_MS = 600_000


def consumer(
    nsqd: NsqdProcess, topic: str, *, msg_timeout: int = NO_TIMEOUT_MS, rdy: int = 1
) -> RawClient:
    client = nsqd.connect()
    client.identify(msg_timeout=msg_timeout)
    client.subscribe(topic, "c", rdy=rdy)
    return client


def test_a_message_that_timed_out_is_redelivered(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.consumer(topic, "c")
    published = time.monotonic()
    nsqd.publish(topic, b"x")
    client.message()
    again = client.message()

    assert 2 == again.attempts
    assert time.monotonic() >= published + 0.3
    assert 1 <= nsqd.stats(topic, "c")["timeout_count"]


def test_a_deferred_message_is_delivered_when_it_is_due(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.consumer(topic, "c")
    published = time.monotonic()
    with nsqd.connect() as producer:
        producer.call(commands.dpub(topic, 200, b"x"))
    message = client.message()

    assert 1 == message.attempts
    assert time.monotonic() >= published + 0.2


def test_a_message_requeued_with_a_delay_is_delivered_when_it_is_due(
    nsqd: NsqdProcess, topic: str
) -> None:
    client = consumer(nsqd, topic)
    nsqd.publish(topic, b"x")
    message = client.message()
    for _ in range(3):
        requeued = time.monotonic()
        client.send(commands.req(message.id, 150))
        message = client.message()

        assert time.monotonic() >= requeued + 0.15


def test_deferral_counts_from_the_publish_and_not_from_the_channel(
    nsqd: NsqdProcess, topic: str
) -> None:
    """The message is delivered before another one that is due later. It would not be if its
    deferral counted from the creation of the channel, a second later.
    """
    published = time.monotonic()
    with nsqd.connect() as producer:
        producer.call(commands.dpub(topic, 3000, b"before the channel"))
        producer.call(commands.pub(topic, b"at once"))
        time.sleep(1.0)
        client = consumer(nsqd, topic, rdy=10)
        producer.call(commands.dpub(topic, 2500, b"after the channel"))

    assert b"at once" == client.message().body
    assert b"before the channel" == client.message().body
    assert published + 3.0 <= time.monotonic()
    assert b"after the channel" == client.message().body


def test_messages_deferred_together_are_delivered_together_in_order(
    nsqd: NsqdProcess, topic: str
) -> None:
    client = consumer(nsqd, topic, rdy=100)
    published = time.monotonic()
    numbers = [b"%d" % number for number in range(50)]
    client.call(commands.dmpub(topic, 5000, numbers))
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=50, depth=0), "all to be deferred")

    assert numbers == [message.body for message in client.messages(50)]
    assert time.monotonic() >= published + 5.0


def test_touch_extends_the_timeout_up_to_the_limit(topic: str) -> None:
    """Four seconds at first, four seconds from each TOUCH, but six in total."""
    with run_nsqd_off_disk("--msg-timeout=4s", "--max-msg-timeout=6s") as nsqd:
        nsqd.publish(topic, b"x")
        began = time.monotonic()
        client = nsqd.consumer(topic, "c")
        message = client.message()
        while not select.select([client], [], [], 0.1)[0]:
            client.send(commands.touch(message.id))
        again = client.message()

        assert 2 == again.attempts
        assert began + 6.0 <= time.monotonic()


def test_a_touched_message_does_not_time_out_early(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    message = client.message()
    time.sleep(0.5)
    touched = time.monotonic()
    client.send(commands.touch(message.id))

    assert 2 == client.message().attempts
    assert touched + TIMEOUT_MS / 1000 <= time.monotonic()


def test_late_fin_is_refused(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    message = client.message()
    client.send(commands.rdy(0))
    wait_until(lambda: nsqd.shows(topic, "c", timeout_count=1), "the timeout")

    with pytest.raises(
        WireError, match=f"^E_FIN_FAILED FIN {message.id.decode()} failed ID not in"
    ):
        client.call(commands.fin(message.id))


def test_a_late_fin_is_accepted_if_the_same_consumer_has_the_message_again(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    message = client.message()
    client.message()
    client.send(commands.fin(message.id))

    assert client.is_silent(seconds=0.5)
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, deferred_count=0, timeout_count=1)


def test_a_finished_message_is_not_redelivered(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    client.send(commands.fin(client.message().id))

    assert client.is_silent(seconds=3.2)  # longer than the message timeout
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, timeout_count=0, requeue_count=0)


def test_a_requeue_delay_over_the_maximum_is_reduced(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic)
    message = client.message()
    began = time.monotonic()
    client.send(commands.req(message.id, 3_600_000))

    assert 2 == client.message().attempts
    assert 5.0 <= time.monotonic() - began


def test_timers_run_in_a_paused_channel(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    client.message()
    nsqd.post(f"/channel/pause?topic={topic}&channel=c")

    wait_until(lambda: nsqd.shows(topic, "c", timeout_count=1, depth=1), "the timeout")
    assert client.is_silent(seconds=0.15)
