"""Topics and channels are deleted, emptied and paused while clients publish and consume."""

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.crash.leader import LeaderProcess, RunNsqd
from tests.seeds import fresh_random

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError

pytestmark = pytest.mark.crash

OPERATIONS = [
    "/topic/delete?topic=t",
    "/topic/empty?topic=t",
    "/topic/pause?topic=t",
    "/topic/unpause?topic=t",
    "/channel/delete?topic=t&channel=c",
    "/channel/empty?topic=t&channel=c",
    "/channel/pause?topic=t&channel=c",
    "/channel/unpause?topic=t&channel=c",
    "/stats?format=json",
]
ROUNDS = 150


def publish(client: RawClient, stop: threading.Event) -> None:
    while not stop.is_set():
        assert b"OK" == client.call(commands.mpub("t", [b"x"] * 50))


def consume(client: RawClient, stop: threading.Event) -> None:
    client.subscribe("t", "c", rdy=100)
    while not stop.is_set():
        with suppress(TimeoutError):  # the topic is paused
            client.send(commands.fin(client.message(seconds=0.1).id))


def run_until_stopped(
    work: Callable[[RawClient, threading.Event], None],
    nsqd: NsqdProcess,
    stop: threading.Event,
    unexpected: list[str],
) -> None:
    """Run `work` on new connections until `stop` is set.

    Expected: a consumer is disconnected when its channel is deleted, and its FIN fails after the
    channel was emptied. A leader refuses a publish whose topic is deleted before the followers have
    the message; a single nsqd with --sync-every=1 does the same before the fsync.
    """
    while not stop.is_set():
        with RawClient(nsqd.tcp_address) as client:
            try:
                work(client, stop)
            except (DisconnectedError, ConnectionError) as lost:
                if work is publish:
                    unexpected.append(repr(lost))
            except WireError as refusal:
                if refusal.code != "E_FIN_FAILED" and not (
                    isinstance(nsqd, LeaderProcess)
                    and str(refusal) == "E_MPUB_FAILED MPUB failed topic t was deleted"
                ):
                    unexpected.append(str(refusal))


@pytest.mark.on_leader
def test_operator_actions_under_load_cause_no_unexpected_error(run_nsqd: RunNsqd) -> None:
    stop = threading.Event()
    unexpected: list[str] = []
    chance = fresh_random("test_operator_actions_under_load_cause_no_unexpected_error")
    with run_nsqd("--max-bytes-per-file=100000") as nsqd:
        threads = [
            threading.Thread(target=run_until_stopped, args=(work, nsqd, stop, unexpected))
            for work in (publish, publish, consume, consume)
        ]
        for thread in threads:
            thread.start()
        statuses = set()
        for _ in range(ROUNDS):
            target = chance.choice(OPERATIONS)
            statuses.add(nsqd.http("GET" if "stats" in target else "POST", target).status)
        stop.set()
        for thread in threads:
            thread.join()
        nsqd.restart()

    assert [] == unexpected
    assert statuses <= {200, 404}
