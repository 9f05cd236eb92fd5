"""Timeouts, deferrals and TOUCH, against the running program.

Times are measured here, at the client: never too early, and no later than the promise allows.
"""

import select
import time
from collections.abc import Iterator

import pytest
from tests.nsqd.off_disk import run_nsqd_off_disk

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import RawClient, Refused
from penstock.testing.waiting import wait_until
from penstock.wire import commands

# What nsqd promises for its timers.
LATENESS_SECONDS = 0.010

# Of several timers on a machine that others use too, this many must keep the promise, not counting
# what the others took of the time.
TIMERS = 9
TIMERS_IN_TIME = 5

# What a single timer may be late on such a machine, where lateness is not the point.
SLACK_SECONDS = 1.0

# Short, so that the tests are.
FLAGS = ("--msg-timeout=300ms", "--max-req-timeout=1s")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd_off_disk(*FLAGS) as process:
        yield process


def unhurried_consumer(nsqd: NsqdProcess, topic: str, *, rdy: int = 1) -> RawClient:
    """Its messages time out after a second: a test that has to do something before that has the
    time for it, on a busy machine too."""
    client = nsqd.connect()
    client.identify(msg_timeout=1000)
    client.subscribe(topic, "c", rdy=rdy)
    return client


def sleep_until(at: float) -> None:
    """For tests whose subject is the time that passes."""
    time.sleep(max(at - time.monotonic(), 0))


def in_time(lateness: list[float]) -> bool:
    """Whether enough of them kept the promise."""
    print("late by ms:", *(f"{late * 1000:.1f}" for late in lateness))
    return sorted(lateness)[TIMERS_IN_TIME - 1] <= LATENESS_SECONDS


def test_timeout_brings_a_message_back_in_time_on_a_new_channel(
    nsqd: NsqdProcess, topic: str
) -> None:
    lateness = []
    for number in range(TIMERS):
        name = f"{topic}-{number}"
        client = nsqd.consumer(name, "c")
        published = time.monotonic()
        nsqd.publish(name, b"x")
        client.message()
        delivered = nsqd.own_time()
        again = client.message()
        lateness.append(nsqd.own_time() - delivered - 0.3)

        assert 2 == again.attempts
        assert time.monotonic() >= published + 0.3
        assert 1 == nsqd.stats(name, "c")["timeout_count"]
        client.close()

    assert in_time(lateness)


def test_deferred_message_comes_in_time_on_a_new_channel(nsqd: NsqdProcess, topic: str) -> None:
    lateness = []
    for number in range(TIMERS):
        name = f"{topic}-{number}"
        client = nsqd.consumer(name, "c")
        published = time.monotonic()
        with nsqd.connect() as producer:
            producer.call(commands.dpub(name, 200, b"x"))
        answered = nsqd.own_time()
        message = client.message()
        lateness.append(nsqd.own_time() - answered - 0.2)

        assert 1 == message.attempts
        assert time.monotonic() >= published + 0.2
        client.close()

    assert in_time(lateness)


def test_requeued_message_comes_in_time(nsqd: NsqdProcess, topic: str) -> None:
    client = nsqd.consumer(topic, "c")
    nsqd.publish(topic, b"x")
    message = client.message()
    lateness = []
    for _ in range(TIMERS):
        requeued = time.monotonic()
        client.send(commands.req(message.id, 150))
        client.call(commands.pub("elsewhere", b"x"))  # once this is answered, that is done
        answered = nsqd.own_time()
        message = client.message()
        lateness.append(nsqd.own_time() - answered - 0.15)

        assert time.monotonic() >= requeued + 0.15

    assert in_time(lateness)


def test_deferral_counts_from_the_publish_and_not_from_the_channel(
    nsqd: NsqdProcess, topic: str
) -> None:
    """It comes before another one that is due after it, but would not be if it were later than the
    channel by its whole deferral."""
    published = time.monotonic()
    with nsqd.connect() as producer:
        producer.call(commands.dpub(topic, 400, b"before the channel"))
        producer.call(commands.pub(topic, b"at once"))
        sleep_until(time.monotonic() + 0.3)
        client = unhurried_consumer(nsqd, topic, rdy=10)
        producer.call(commands.dpub(topic, 200, b"after the channel"))

    assert b"at once" == client.message().body
    assert b"before the channel" == client.message().body
    assert published + 0.4 <= time.monotonic()
    assert b"after the channel" == client.message().body


def test_messages_deferred_together_come_together_and_in_order(
    nsqd: NsqdProcess, topic: str
) -> None:
    client = nsqd.consumer(topic, "c", rdy=100)
    published = time.monotonic()
    numbers = [b"%d" % number for number in range(50)]
    client.call(commands.dmpub(topic, 1000, numbers))
    wait_until(lambda: nsqd.shows(topic, "c", deferred_count=50, depth=0), "all to be deferred")

    assert numbers == [message.body for message in client.messages(50)]
    assert time.monotonic() >= published + 1.0


def test_touch_gives_more_time_up_to_the_limit(topic: str) -> None:
    """A second at first, a second from each TOUCH, but 1.5 s in all."""
    with run_nsqd_off_disk("--msg-timeout=1s", "--max-msg-timeout=1500ms") as nsqd:
        nsqd.publish(topic, b"x")
        began = time.monotonic()
        client = nsqd.consumer(topic, "c")
        message = client.message()
        while time.monotonic() < began + 1.3 and not select.select([client], [], [], 0.1)[0]:
            touched = time.monotonic()
            client.send(commands.touch(message.id))
        again = client.message()
        now = time.monotonic()

        assert 2 == again.attempts
        assert began + 1.5 <= now < touched + 1.0


def test_touched_message_times_out_as_late_as_its_last_touch_says(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = unhurried_consumer(nsqd, topic)
    message = client.message()
    sleep_until(time.monotonic() + 0.2)
    touched = time.monotonic()
    client.send(commands.touch(message.id))
    client.message()

    assert touched + 1.0 <= time.monotonic() < touched + 1.0 + SLACK_SECONDS


def test_late_fin_is_refused(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = unhurried_consumer(nsqd, topic)
    message = client.message()
    client.send(commands.rdy(0))
    wait_until(lambda: nsqd.shows(topic, "c", timeout_count=1), "the timeout")

    with pytest.raises(Refused, match=f"^E_FIN_FAILED FIN {message.id.decode()} failed ID not in"):
        client.call(commands.fin(message.id))


def test_late_fin_counts_if_the_message_has_come_back_to_the_same_consumer(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.publish(topic, b"x")
    client = unhurried_consumer(nsqd, topic)
    message = client.message()
    client.message()
    client.send(commands.fin(message.id))

    assert client.is_silent(seconds=0.5)
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, deferred_count=0, timeout_count=1)


def test_finished_message_does_not_come_again(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = unhurried_consumer(nsqd, topic)
    client.send(commands.fin(client.message().id))

    assert client.is_silent(seconds=1.2)  # longer than the message timeout
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, timeout_count=0, requeue_count=0)


def test_requeue_for_too_long_is_for_the_longest_time(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = nsqd.consumer(topic, "c")
    message = client.message()
    began = time.monotonic()
    client.send(commands.req(message.id, 3_600_000))
    client.message()

    assert 1.0 <= time.monotonic() - began < 1.0 + SLACK_SECONDS


def test_timers_go_on_in_a_paused_channel(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.publish(topic, b"x")
    client = unhurried_consumer(nsqd, topic)
    client.message()
    nsqd.post(f"/channel/pause?topic={topic}&channel=c")

    wait_until(lambda: nsqd.shows(topic, "c", timeout_count=1, depth=1), "the timeout")
    assert client.is_silent(seconds=0.15)
