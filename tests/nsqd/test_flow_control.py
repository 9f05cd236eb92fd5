"""Clients that do not keep up, against the running program: memory stays, and patience ends."""

import time
from contextlib import suppress

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until
from penstock.wire import commands
from penstock.wire.frames import OK

MIB = 1024 * 1024

# The kernel gives a client that never reads a few hundred kilobytes at most, if it is told so.
SMALL_RECEIVE_BUFFER = 8 * 1024

# Far below what would be sent if nobody stopped it; what one turn of delivery takes, and more.
GROWTH_BYTES = 24 * MIB


def test_consumer_that_never_reads_does_not_grow_memory() -> None:
    """100 MB are waiting for it, and it says that it would take them all at once."""
    with run_nsqd("--mem-queue-size=50") as nsqd:
        publish_large_messages(nsqd, count=2500, size=40_000)
        before = nsqd.resident_bytes()
        stubborn = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        stubborn.subscribe("t", "c", rdy=2500)
        largest = largest_while(nsqd, seconds=1.5)
        delivered = nsqd.stats("t", "c")["in_flight_count"]
    print(f"grew by {(largest - before) / MIB:.1f} MiB, {delivered} messages handed out")

    assert 0 < delivered < 2500
    assert largest - before < GROWTH_BYTES


def test_many_consumers_that_never_read_do_not_grow_memory_together() -> None:
    with run_nsqd("--mem-queue-size=50") as nsqd:
        publish_large_messages(nsqd, count=2500, size=4_000)
        before = nsqd.resident_bytes()
        clients = [nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER) for _ in range(20)]
        for client in clients:
            client.subscribe("t", "c", rdy=2500)
        largest = largest_while(nsqd, seconds=1.0)
    print(f"grew by {(largest - before) / MIB:.1f} MiB")

    assert largest - before < GROWTH_BYTES


@pytest.mark.parametrize("answers_heartbeats", [True, False])
def test_consumer_that_never_reads_is_closed_after_the_write_deadline(
    *, answers_heartbeats: bool
) -> None:
    """Which is one heartbeat interval; commands of its own do not save it."""
    with run_nsqd() as nsqd:
        publish_large_messages(nsqd, count=500, size=40_000)
        stubborn = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        stubborn.identify(heartbeat_interval=1000)
        began, their_began = time.monotonic(), nsqd.own_time()
        stubborn.subscribe("t", "c", rdy=2500)

        def is_closed() -> bool:
            if answers_heartbeats:
                send_if_open(stubborn, commands.nop())
            return nsqd.shows("t", "c", client_count=0)

        wait_until(is_closed, "it to be closed", seconds=5)

        assert 0.99 <= time.monotonic() - began
        assert nsqd.own_time() - their_began < 1.9  # at 2.0 it would be closed for its silence
        assert nsqd.shows("t", "c", depth=500, in_flight_count=0)


def test_consumer_that_reads_slowly_gets_everything() -> None:
    count = 400
    with run_nsqd("--mem-queue-size=50") as nsqd:
        publish_large_messages(nsqd, count=count, size=40_000)
        slow = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        slow.subscribe("t", "c", rdy=2500)
        received = [slow.message() for _ in range(count)]

        assert count == len({message.id for message in received})


def test_producer_that_does_not_read_its_answers_is_slowed() -> None:
    """It can send no more once its answers fill the buffers, and all is well when it reads them."""
    publish = commands.pub("t", b"x")
    chunk = publish * 1000
    with run_nsqd() as nsqd:
        before = nsqd.resident_bytes()
        hasty = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        hasty.identify(heartbeat_interval=60_000)
        sent = 0
        while (taken := hasty.send_some(chunk[sent % len(publish) :], seconds=1.0)) > 0:
            sent += taken
            assert sent < 200 * MIB, "nobody stops it"
        grown = nsqd.resident_bytes() - before
        published = nsqd.stats("t")["message_count"]
        print(f"stopped after {sent / MIB:.1f} MiB, {published} messages, {grown / MIB:.1f} MiB")

        assert published < sent // len(publish)
        assert grown < GROWTH_BYTES

        whole, cut = divmod(sent, len(publish))
        assert OK * whole == hasty.read(len(OK) * whole, seconds=30)
        if cut:
            hasty.send(publish[cut:])
            assert OK == hasty.read(len(OK))


def publish_large_messages(nsqd: NsqdProcess, *, count: int, size: int) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    batch = 50
    producer = nsqd.connect()
    for _ in range(count // batch):
        producer.call(commands.mpub("t", [b"x" * size] * batch))


def largest_while(nsqd: NsqdProcess, *, seconds: float) -> int:
    """The most memory it takes in this time."""
    deadline = time.monotonic() + seconds
    largest = 0
    while time.monotonic() < deadline:
        largest = max(largest, nsqd.resident_bytes())
        time.sleep(0.01)
    return largest


def send_if_open(client: RawClient, command: bytes) -> None:
    with suppress(ConnectionError):  # closed by nsqd, which is what the caller waits to see
        client.send(command)
