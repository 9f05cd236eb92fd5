"""Many topics, channels and messages in a running nsqd.

`python -m bench.channels` and `python -m bench --only backlog` measure their cost.
"""

from http.client import HTTPConnection

import pytest
from tests.nsqd.off_disk import run_nsqd_off_disk

from penstock.protocol import commands
from penstock.protocol.frames import MessageFrame, ResponseFrame
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.slow

TOPICS = 300
CHANNELS = 10

BACKLOG = 200_000
BATCH = 500


def test_thousands_of_channels_work_and_survive_a_restart() -> None:
    with run_nsqd_off_disk() as nsqd:
        create_channels(nsqd)
        assert TOPICS * CHANNELS == channel_count(nsqd)
        assert 200 == nsqd.http("GET", "/stats").status

        client = nsqd.consumer(f"topic-{TOPICS // 2}", "channel-5")
        client.call(commands.dpub(f"topic-{TOPICS // 2}", 100, b"x"))
        client.send(commands.fin(client.message().id))

        nsqd.restart()
        assert TOPICS * CHANNELS == channel_count(nsqd)


def create_channels(nsqd: NsqdProcess) -> None:
    connection = HTTPConnection(nsqd.http_address, timeout=60)
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


def channel_count(nsqd: NsqdProcess) -> int:
    topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
    return sum(len(topic["channels"]) for topic in topics)


def test_large_backlog_is_delivered_in_order() -> None:
    with run_nsqd() as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        publish_backlog(nsqd)

        assert nsqd.shows("t", "c", depth=BACKLOG)

        first_out_of_order = drain_backlog(nsqd.consumer("t", "c", rdy=2500))
        wait_until(lambda: nsqd.shows("t", "c", depth=0, in_flight_count=0), "all to be finished")

    assert first_out_of_order is None


def body(number: int) -> bytes:
    """200 bytes that contain the number."""
    return b"%0200d" % number


def publish_backlog(nsqd: NsqdProcess) -> None:
    producer = nsqd.connect()
    for start in range(0, BACKLOG, BATCH):
        producer.call(commands.mpub("t", [body(n) for n in range(start, start + BATCH)]))


def drain_backlog(client: RawClient) -> int | None:
    """Finish all messages; returns the first number that was out of order."""
    misplaced = None
    number = 0
    while number < BACKLOG:
        received = [client.message(), *client.received_frames()]
        fins = []
        for message in received:
            if message == ResponseFrame(
                b"_heartbeat_"
            ):  # on machines where this takes half a minute
                fins.append(commands.nop())
                continue
            assert isinstance(message, MessageFrame)
            if misplaced is None and message.body != body(number):
                misplaced = number
            fins.append(commands.fin(message.id))
            number += 1
        client.send(*fins)
    return misplaced
