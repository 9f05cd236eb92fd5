"""Timeouts, deferrals and TOUCH, against the running program.

A timer must fire, and not before it is due. How late it fires depends on the machine:
`python -m bench --only deferred` measures that, and tests with a manual clock (tests/broker) fix
which timer is set when.
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

# Short, so that the tests are.
FLAGS = ("--msg-timeout=300ms", "--max-req-timeout=5s")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd_off_disk(*FLAGS) as process:
        yield process


# Long enough to do something before it ends on a busy machine, too.
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


def test_timeout_brings_a_message_back_on_a_new_channel(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.consumer(topic, "c")
    published = time.monotonic()
    nsqd.publish(topic, b"x")
    client.message()
    again = client.message()

    assert 2 == again.attempts
    assert time.monotonic() >= published + 0.3
    assert 1 <= nsqd.stats(topic, "c")["timeout_count"]


def test_deferred_message_comes_when_it_is_due_on_a_new_channel(
    nsqd: NsqdProcess, topic: str
) -> None:
    client = nsqd.consumer(topic, "c")
    published = time.monotonic()
    with nsqd.connect() as producer:
        producer.call(commands.dpub(topic, 200, b"x"))
    message = client.message()

    assert 1 == message.attempts
    assert time.monotonic() >= published + 0.2


def test_requeued_message_comes_when_it_is_due_each_time(nsqd: NsqdProcess, topic: str) -> None:
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
    """It comes before another one that is due after it, but would not be if its deferral counted
    from the time at which the channel was made, a second later."""
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


def test_messages_deferred_together_come_together_and_in_order(
    nsqd: NsqdProcess, topic: str
) -> None:
    client = consumer(nsqd, topic, rdy=100)
    published = time.monotonic()
    numbers = [b"%d" % number for number in range(50)]
    client.call(commands.dmpub(topic, 5000, numbers))
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=50, depth=0), "all to be deferred")

    assert numbers == [message.body for message in client.messages(50)]
    assert time.monotonic() >= published + 5.0


def test_touch_gives_more_time_up_to_the_limit(topic: str) -> None:
    """Four seconds at first, four seconds from each TOUCH, but six in all."""
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


def test_touched_message_times_out_no_earlier_than_its_last_touch_says(
    nsqd: NsqdProcess, topic: str
) -> None:
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


def test_late_fin_counts_if_the_message_has_come_back_to_the_same_consumer(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    message = client.message()
    client.message()
    client.send(commands.fin(message.id))

    assert client.is_silent(seconds=0.5)
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, deferred_count=0, timeout_count=1)


def test_finished_message_does_not_come_again(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    client.send(commands.fin(client.message().id))

    assert client.is_silent(seconds=3.2)  # longer than the message timeout
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, timeout_count=0, requeue_count=0)


def test_requeue_for_too_long_is_for_the_longest_time(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic)
    message = client.message()
    began = time.monotonic()
    client.send(commands.req(message.id, 3_600_000))

    assert 2 == client.message().attempts
    assert 5.0 <= time.monotonic() - began


def test_timers_go_on_in_a_paused_channel(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = consumer(nsqd, topic, msg_timeout=TIMEOUT_MS)
    client.message()
    nsqd.post(f"/channel/pause?topic={topic}&channel=c")

    wait_until(lambda: nsqd.shows(topic, "c", timeout_count=1, depth=1), "the timeout")
    assert client.is_silent(seconds=0.15)
