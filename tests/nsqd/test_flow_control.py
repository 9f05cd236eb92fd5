"""Clients that do not keep up: nsqd stops reading or sending."""

import time
from contextlib import suppress

import pytest

from penstock.protocol import commands
from penstock.protocol.frames import OK
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until

MIB = 1024 * 1024

# Limits the kernel's buffer of a client that never reads to a few hundred kilobytes.
SMALL_RECEIVE_BUFFER = 8 * 1024


@pytest.mark.parametrize("consumers", [1, 5])
def test_consumers_that_never_read_are_sent_a_part_of_the_queue(consumers: int) -> None:
    """100 MB are queued, and each consumer's RDY allows all of them. Messages that nsqd has read
    but cannot send would be in its memory.
    """
    with run_nsqd("--mem-queue-size=50") as nsqd:
        publish_large_messages(nsqd, count=2500, size=40_000)
        clients = [
            nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER) for _ in range(consumers)
        ]
        for client in clients:
            client.subscribe("t", "c", rdy=2500)
        wait_until(lambda: nsqd.stats("t", "c")["in_flight_count"], "something to be sent")
        time.sleep(1.0)  # nsqd would send in the meantime

        assert nsqd.stats("t", "c")["in_flight_count"] < 2500


@pytest.mark.parametrize("answers_heartbeats", [True, False])
def test_consumer_that_never_reads_is_closed_after_the_write_deadline(
    *, answers_heartbeats: bool
) -> None:
    """The deadline is one heartbeat interval; commands of the consumer do not extend it."""
    with run_nsqd() as nsqd:
        publish_large_messages(nsqd, count=500, size=40_000)
        stubborn = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        stubborn.identify(heartbeat_interval=1000)
        began = time.monotonic()
        stubborn.subscribe("t", "c", rdy=2500)

        def is_closed() -> bool:
            if answers_heartbeats:
                send_if_open(stubborn, commands.nop())
            return nsqd.shows("t", "c", client_count=0)

        wait_until(is_closed, "it to be closed")

        assert 0.99 <= time.monotonic() - began
        assert nsqd.shows("t", "c", depth=500, in_flight_count=0)


def test_consumer_that_reads_slowly_gets_everything() -> None:
    count = 400
    with run_nsqd("--mem-queue-size=50") as nsqd:
        publish_large_messages(nsqd, count=count, size=40_000)
        slow = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        slow.subscribe("t", "c", rdy=2500)
        received = [slow.message() for _ in range(count)]

        assert count == len({message.id for message in received})


def test_producer_that_does_not_read_responses_is_throttled() -> None:
    """When unread responses fill the buffers, it cannot send; after it reads them, it can."""
    publish = commands.pub("t", b"x")
    chunk = publish * 1000
    with run_nsqd() as nsqd:
        hasty = nsqd.connect(receive_buffer_bytes=SMALL_RECEIVE_BUFFER)
        hasty.identify(heartbeat_interval=60_000)
        sent = 0

        def is_slowed() -> bool:
            """Whether the client cannot send, although nsqd has not read everything."""
            nonlocal sent
            while taken := hasty.send_some(chunk[sent % len(publish) :], seconds=1.0):
                sent += taken
                assert sent < 200 * MIB, "nsqd does not stop reading"
            published: int = nsqd.stats("t")["message_count"]
            return published < sent // len(publish)

        wait_until(is_slowed, "it to be slowed")

        whole, cut = divmod(sent, len(publish))
        assert OK * whole == hasty.read(len(OK) * whole)
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


def send_if_open(client: RawClient, command: bytes) -> None:
    with suppress(ConnectionError):  # closed by nsqd, as the caller expects
        client.send(command)
