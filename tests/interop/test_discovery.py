"""Existing clients in a cluster whose nodes come, go, crash and are replaced.

Each client runs as a program of its own in `clients/`, FOLLOWER TOPIC CHANNEL NSQLOOKUPD..., and
prints what it consumes. All of them follow the same topic at the same time, each by a channel of
its own, and each has to see every message.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CLIENTS = Path(__file__).parent / "clients"
FOLLOWERS = ["pynsq", "gnsq", "ansq", *(["nsqjs"] if shutil.which("node") else [])]

TOPIC = "orders"

# Clients ask every second, one nsqlookupd after the other, and pause when a connection is lost.
FOUND_SECONDS = 120.0


class Client:
    """A client's program, and the lines that it has printed."""

    def __init__(self, program: str, *args: str) -> None:
        runtime = ["node"] if program.endswith(".js") else [sys.executable, "-W", "ignore"]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (until `kill`)
        self._process = subprocess.Popen(
            [*runtime, str(CLIENTS / program), *args],
            stdout=self._output,
        )

    def printed(self) -> list[str]:
        fd = self._output.fileno()  # whose position is the client's
        return os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines()

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


class Cluster:
    """nsqlookupds, nsqds that register with all of them, and clients that ask all of them."""

    def __init__(self, stack: ExitStack, *, channels: list[str]) -> None:
        self.lookupds = [stack.enter_context(run_nsqlookupd(*_HERE)) for _ in range(2)]
        self.published: set[str] = set()
        self._stack = stack
        for nsqlookupd in self.lookupds:
            for channel in channels:
                nsqlookupd.post(f"/channel/create?topic={TOPIC}&channel={channel}")

    def add_nsqd(self, *flags: str) -> NsqdProcess:
        addresses = [f"--lookupd-tcp-address={each.tcp_address}" for each in self.lookupds]
        return self._stack.enter_context(run_nsqd(*_HERE, *addresses, *flags))

    def start(self, program: str, *args: str) -> Client:
        client = Client(program, *args)
        self._stack.callback(client.kill)
        return client

    def follow(self, client: str) -> Client:
        program = f"{client}_follower.js" if client == "nsqjs" else f"{client}_follower.py"
        asked = [each.http_address for each in self.lookupds]
        return self.start(program, TOPIC, client, *asked)

    def publish(self, nsqd: NsqdProcess, *bodies: str) -> None:
        nsqd.publish(TOPIC, *(body.encode() for body in bodies))
        self.published.update(bodies)


# What others are told, so that they find us here.
_HERE = ("--broadcast-address=127.0.0.1",)


@contextmanager
def cluster(*, channels: list[str]) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, channels=channels)


def takes_producers(nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess) -> bool:
    nodes = nsqlookupd.http("GET", "/nodes?for=producer").json()["producers"]
    return nsqd.tcp_address in [f"{each['broadcast_address']}:{each['tcp_port']}" for each in nodes]


def channels_known_to(nsqlookupd: NsqlookupdProcess) -> set[str]:
    return set(nsqlookupd.http("GET", f"/channels?topic={TOPIC}").json()["channels"])


def has_printed(client: Client, bodies: set[str]) -> bool:
    return bodies <= set(client.printed())


@pytest.fixture
def numbered() -> Iterator[str]:
    return (f"message {number}" for number in range(1_000_000))


def test_every_client_gets_every_message_whatever_becomes_of_the_cluster(
    numbered: Iterator[str],
) -> None:
    def everybody_has_everything() -> None:
        for client, follower in followers.items():
            wait_until(
                partial(has_printed, follower, ours.published),
                f"every message with {client}",
                seconds=FOUND_SECONDS,
            )

    def publish_to(nsqd: NsqdProcess) -> None:
        ours.publish(nsqd, *(next(numbered) for _ in range(20)))

    with cluster(channels=FOLLOWERS) as ours:
        first, second = ours.lookupds
        nsqds = [ours.add_nsqd() for _ in range(3)]
        followers = {client: ours.follow(client) for client in FOLLOWERS}
        for nsqd in nsqds:
            publish_to(nsqd)
        everybody_has_everything()

        first.kill()
        publish_to(ours.add_nsqd())
        everybody_has_everything()

        # Paused, so that messages are there and no client is talking to it: ansq never comes to
        # rest when its connection is reset, as it is when an answer has not been read.
        nsqds[0].post(f"/topic/pause?topic={TOPIC}")
        publish_to(nsqds[0])
        nsqds[0].kill()
        nsqds[0].restart()
        nsqds[0].post(f"/topic/unpause?topic={TOPIC}")
        publish_to(nsqds[0])
        everybody_has_everything()

        first.restart()
        wait_until(
            lambda: set(FOLLOWERS) == channels_known_to(first),
            "the nodes to tell it which channels there are",
            seconds=FOUND_SECONDS,
        )
        second.kill()
        publish_to(ours.add_nsqd())
        everybody_has_everything()


def test_nodes_are_replaced_one_by_one_under_load_and_nobody_notices() -> None:
    with cluster(channels=["pynsq"]) as ours:
        lookupd = ours.lookupds[0]
        nsqds = [ours.add_nsqd("--sigterm=drain", "--drain-timeout=0") for _ in range(3)]
        wait_until(lambda: all(takes_producers(lookupd, each) for each in nsqds), "all nodes")
        consumer = ours.follow("pynsq")
        producer = ours.start("gnsq_roaming_producer.py", TOPIC, lookupd.http_address)
        wait_until(consumer.printed, "the first message", seconds=FOUND_SECONDS)

        for nsqd in nsqds:
            replace(nsqd, lookupd, producer)

        producer.end()
        *taken, refused = producer.printed()
        wait_until(
            lambda: has_printed(consumer, set(taken)),
            "all that was taken",
            seconds=FOUND_SECONDS,
        )

        assert "refused: 0" == refused


def replace(nsqd: NsqdProcess, lookupd: NsqlookupdProcess, producer: Client) -> None:
    """Drains a node, starts it again, and lets a hundred messages more come."""
    nsqd.send_signal(signal.SIGTERM)
    assert 0 == nsqd.wait(seconds=FOUND_SECONDS)
    assert "NSQ: drained" in nsqd.log
    nsqd.start()
    wait_until(lambda: takes_producers(lookupd, nsqd), "it to be back")
    taken_before = len(producer.printed())
    wait_until(lambda: len(producer.printed()) > taken_before + 100, "more load")
