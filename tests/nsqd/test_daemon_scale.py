"""Many topics, many channels, many messages, in the running program."""

import os
import signal
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.nsqd.off_disk import run_nsqd_off_disk

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until
from penstock.wire import commands
from penstock.wire.frames import Message, Response

# One at a time: they are heavy, and measure.
pytestmark = pytest.mark.slow

MIB = 1024 * 1024

TOPICS = 1_000
CHANNELS = 10

# "A few seconds", without those in which a busy machine let neither nsqd nor this test run.
USABLE_SECONDS = 5.0

IDLE_SECONDS = 5.0
IDLE_SHARE_MAX = 0.01


def test_ten_thousand_channels_stay_usable() -> None:
    with run_nsqd_off_disk() as nsqd:
        seconds = {"create": timed(nsqd, create_channels)}
        seconds["stats, JSON"] = timed(nsqd, check_stats)
        seconds["stats, text"] = timed(nsqd, lambda nsqd: nsqd.http("GET", "/stats"))
        idle_cpu = idle_share_of_a_core(nsqd)
        lateness_ms = timer_lateness_ms(nsqd)
        resident = nsqd.resident_bytes()
        seconds["stop"] = timed_stop(nsqd)
        seconds["start"] = timed(nsqd, NsqdProcess.start)
        check_stats(nsqd)
        seconds["stop again"] = timed_stop(nsqd)
    print({name: f"{value:.2f} s" for name, value in seconds.items()})
    print(f"idle {idle_cpu:.2%} of a core, {resident / MIB:.0f} MiB, timers late by", lateness_ms)

    assert {} == {name: value for name, value in seconds.items() if value > USABLE_SECONDS}
    assert idle_cpu < IDLE_SHARE_MAX
    assert sorted(lateness_ms)[len(lateness_ms) // 2] <= 10


def timed(nsqd: NsqdProcess, action: Callable[[NsqdProcess], object]) -> float:
    """How long it takes, without what a busy machine adds: nsqd and this test wait for each other
    in turn, so neither waits for a core while the other one does."""
    ours, theirs = our_starved_seconds(), their_starved_seconds(nsqd)
    began = time.monotonic()
    action(nsqd)
    took = time.monotonic() - began
    starved = their_starved_seconds(nsqd) - theirs + our_starved_seconds() - ours
    return took - starved


def timed_stop(nsqd: NsqdProcess) -> float:
    nsqd.close_clients()
    began = nsqd.own_time()
    nsqd.send_signal(signal.SIGTERM)
    os.waitid(os.P_PID, nsqd.pid, os.WEXITED | os.WNOWAIT)  # its figures are still there then
    took = nsqd.own_time() - began
    assert 0 == nsqd.wait(), nsqd.log
    return took


def our_starved_seconds() -> float:
    return int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e9


def their_starved_seconds(nsqd: NsqdProcess) -> float:
    return nsqd.starved_seconds() if nsqd.is_running else 0.0


def create_channels(nsqd: NsqdProcess) -> None:
    connection = HTTPConnection(nsqd.http_address, timeout=10)
    for topic in range(TOPICS):
        post(connection, f"/topic/create?topic=topic-{topic}")
        for channel in range(CHANNELS):
            post(connection, f"/channel/create?topic=topic-{topic}&channel=channel-{channel}")
    connection.close()


def post(connection: HTTPConnection, target: str) -> None:
    connection.request("POST", target)
    response = connection.getresponse()
    response.read()
    assert 200 == response.status, target


def check_stats(nsqd: NsqdProcess) -> None:
    topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
    assert TOPICS * CHANNELS == sum(len(topic["channels"]) for topic in topics)


def idle_share_of_a_core(nsqd: NsqdProcess) -> float:
    """Once nsqd.dat is written, all is synced, and the rest of the work is done."""
    wait_until(lambda: share_of_a_core(nsqd, seconds=0.5) < IDLE_SHARE_MAX, "the work to be done")
    return share_of_a_core(nsqd, seconds=IDLE_SECONDS)


def share_of_a_core(nsqd: NsqdProcess, *, seconds: float) -> float:
    before, began = nsqd.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (nsqd.cpu_seconds() - before) / (time.monotonic() - began)


def timer_lateness_ms(nsqd: NsqdProcess) -> list[float]:
    """Of a few deferred messages, among all those channels."""
    client = nsqd.consumer("topic-500", "channel-5")
    lateness = []
    for _ in range(5):
        client.call(commands.dpub("topic-500", 100, b"x"))
        answered = nsqd.own_time()
        message = client.message()
        lateness.append(round((nsqd.own_time() - answered - 0.1) * 1000, 1))
        client.send(commands.fin(message.id))
    return lateness


BACKLOG = 1_000_000
BATCH = 500


def test_backlog_of_a_million_is_kept_on_disk_and_delivered_in_order() -> None:
    with run_nsqd() as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        publish_backlog(nsqd)
        after_publish = nsqd.resident_bytes()

        assert nsqd.shows("t", "c", depth=BACKLOG)

        first_out_of_order = drain_backlog(nsqd.consumer("t", "c", rdy=2500))
        after_drain = nsqd.resident_bytes()
        wait_until(lambda: nsqd.shows("t", "c", depth=0, in_flight_count=0), "all to be finished")
    print(f"{after_publish / MIB:.0f} MiB published, {after_drain / MIB:.0f} MiB drained")

    assert first_out_of_order is None
    assert after_publish < 120_000_000
    assert after_drain < 120_000_000


def body(number: int) -> bytes:
    """200 bytes that say which one they are."""
    return b"%0200d" % number


def publish_backlog(nsqd: NsqdProcess) -> None:
    producer = nsqd.connect()
    for start in range(0, BACKLOG, BATCH):
        producer.call(commands.mpub("t", [body(n) for n in range(start, start + BATCH)]))


def drain_backlog(client: RawClient) -> int | None:
    """Finishes all messages; returns the first number that did not come in its place."""
    misplaced = None
    number = 0
    while number < BACKLOG:
        received = [client.message(), *client.received_frames()]
        fins = []
        for message in received:
            if message == Response(b"_heartbeat_"):  # where this takes half a minute
                fins.append(commands.nop())
                continue
            assert isinstance(message, Message)
            if misplaced is None and message.body != body(number):
                misplaced = number
            fins.append(commands.fin(message.id))
            number += 1
        client.send(*fins)
    return misplaced
