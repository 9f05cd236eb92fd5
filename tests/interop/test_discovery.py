"""Existing clients in a cluster whose nodes start, stop, crash and are replaced.

Each client is a program in `clients/` (FOLLOWER TOPIC CHANNEL NSQLOOKUPD...) that prints the
messages it consumes. All clients consume the same topic at the same time, each with its own
channel, and each must receive every message.
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

# Clients poll one nsqlookupd per second in turn, and pause after a lost connection.
FOUND_SECONDS = 120.0


class Client:
    """A running client program and its output."""

    def __init__(self, program: str, *args: str) -> None:
        runtime = ["node"] if program.endswith(".js") else [sys.executable, "-W", "ignore"]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`kill` closes it)
        self._process = subprocess.Popen(
            [*runtime, str(CLIENTS / program), *args],
            stdout=self._output,
        )

    def printed(self) -> list[str]:
        fd = self._output.fileno()  # pread, because the client shares the file position
        return os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines()

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


class Cluster:
    """Two nsqlookupds, nsqds that register with both, and clients that ask both."""

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


# The address that nsqds register.
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


def test_every_client_gets_every_message_while_nodes_start_crash_and_restart(
    numbered: Iterator[str],
) -> None:
    def wait_until_all_have_all() -> None:
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
        wait_until_all_have_all()

        first.kill()
        publish_to(ours.add_nsqd())
        wait_until_all_have_all()

        # Paused, so that the topic keeps its messages and no client has unread data: if ansq's
        # connection is reset, ansq hangs.
        nsqds[0].post(f"/topic/pause?topic={TOPIC}")
        publish_to(nsqds[0])
        nsqds[0].kill()
        nsqds[0].restart()
        nsqds[0].post(f"/topic/unpause?topic={TOPIC}")
        publish_to(nsqds[0])
        wait_until_all_have_all()

        first.restart()
        wait_until(
            lambda: set(FOLLOWERS) == channels_known_to(first),
            "the nodes to register their channels",
            seconds=FOUND_SECONDS,
        )
        second.kill()
        publish_to(ours.add_nsqd())
        wait_until_all_have_all()


def test_rolling_replacement_under_load_loses_and_refuses_no_message() -> None:
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
            "all accepted messages",
            seconds=FOUND_SECONDS,
        )

        assert "refused: 0" == refused


def replace(nsqd: NsqdProcess, lookupd: NsqlookupdProcess, producer: Client) -> None:
    """Drain a node, restart it, and wait for a hundred further messages."""
    nsqd.send_signal(signal.SIGTERM)
    assert 0 == nsqd.wait(seconds=FOUND_SECONDS)
    assert "NSQ: drained" in nsqd.log
    nsqd.start()
    wait_until(lambda: takes_producers(lookupd, nsqd), "the node to be registered again")
    taken_before = len(producer.printed())
    wait_until(lambda: len(producer.printed()) > taken_before + 100, "more load")
