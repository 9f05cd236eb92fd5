"""Reading a long history back costs little, and nobody else notices."""

import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.wire import commands

MESSAGES, BATCH, BODY = 1_000_000, 200, b"x" * 200
FRAMES = {"Accept": "application/vnd.penstock.frames"}

LIVE_PER_SECOND, LIVE_SECONDS = 2_000, 3


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        producer = process.connect()
        for _ in range(MESSAGES // BATCH):
            producer.call(commands.mpub("t", [BODY] * BATCH))
        yield process


def read_all(nsqd: NsqdProcess) -> int:
    """Reads all messages as frames; returns how many bytes they were."""
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    connection.request("GET", "/topic/messages?topic=t", headers=FRAMES)
    response, piece, size = connection.getresponse(), bytearray(1 << 20), 0
    while count := response.readinto(piece):
        size += count
    connection.close()
    return size


@pytest.mark.slow
def test_frames_are_read_at_hundreds_of_megabytes_a_cpu_second(nsqd: NsqdProcess) -> None:
    cpu_before = nsqd.cpu_seconds()
    size = read_all(nsqd)
    cpu_seconds = nsqd.cpu_seconds() - cpu_before

    assert MESSAGES * (34 + len(BODY)) == size
    assert size / cpu_seconds > 400_000_000


@pytest.mark.slow
def test_live_messages_are_not_held_up(nsqd: NsqdProcess) -> None:
    consumer, producer = nsqd.consumer("live", "c", rdy=100), nsqd.connect()
    latencies_ns: list[int] = []
    is_over = threading.Event()

    def consume() -> None:
        for _ in range(LIVE_PER_SECOND * LIVE_SECONDS):
            message = consumer.message()
            latencies_ns.append(time.monotonic_ns() - int(message.body))
            consumer.send(commands.fin(message.id))

    def keep_reading() -> None:
        while not is_over.is_set():
            read_all(nsqd)

    threads = [threading.Thread(target=consume), threading.Thread(target=keep_reading)]
    for thread in threads:
        thread.start()
    started, starved = time.monotonic(), nsqd.starved_seconds()
    for number in range(LIVE_PER_SECOND * LIVE_SECONDS):
        time.sleep(max(started + number / LIVE_PER_SECOND - time.monotonic(), 0))
        producer.call(commands.pub("live", b"%d" % time.monotonic_ns()))
    threads[0].join()
    is_over.set()
    threads[1].join()

    # A machine that is busy with something else is not nsqd's doing.
    starved_share = (nsqd.starved_seconds() - starved) / LIVE_SECONDS
    p99_ms = sorted(latencies_ns)[len(latencies_ns) * 99 // 100] / 1e6
    assert p99_ms < 10 or starved_share > 0.5
