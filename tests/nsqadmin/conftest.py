"""Fixtures: a small cluster with an nsqadmin."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.testing.nsqadmin import NsqadminProcess, run_nsqadmin
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until


@dataclass(frozen=True)
class Cluster:
    """Two nsqds, the nsqlookupd they are registered with, and an nsqadmin."""

    nsqds: tuple[NsqdProcess, NsqdProcess]
    nsqlookupd: NsqlookupdProcess
    nsqadmin: NsqadminProcess

    def publish(self, topic: str, *bodies: bytes, node: int = 0) -> None:
        """Publish messages and wait until nsqlookupd lists the node for the topic."""
        self.nsqds[node].publish(topic, *bodies)
        port = int(self.nsqds[node].http_address.rpartition(":")[2])
        wait_until(lambda: port in self.ports_of(topic), f"nsqlookupd to list {topic}")

    def create_channel(self, topic: str, channel: str, *, node: int = 0) -> None:
        """Create a channel and wait until it has received the messages of the topic."""
        nsqd = self.nsqds[node]
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        wait_until(lambda: nsqd.stats(topic)["depth"] == 0, f"{channel} to have the messages")

    def ports_of(self, topic: str) -> list[int]:
        """HTTP ports of the nsqds that nsqlookupd lists for a topic."""
        answer = self.nsqlookupd.http("GET", f"/lookup?topic={topic}").json()
        return [producer["http_port"] for producer in answer.get("producers", [])]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Shared by all tests of a module; each test uses its own topics."""
    with run_nsqlookupd() as nsqlookupd:
        flags = ("--broadcast-address=127.0.0.1", "--retention-time=1h")
        lookupd = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
        admin_flags = (
            f"--lookupd-http-address={nsqlookupd.http_address}",
            "--sample-interval=200ms",
        )
        with (
            run_nsqd(*flags, lookupd, "--node-id=1") as first,
            run_nsqd(*flags, lookupd, "--node-id=2") as second,
            run_nsqadmin(*admin_flags) as nsqadmin,
        ):
            yield Cluster((first, second), nsqlookupd, nsqadmin)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that is unique to the test, so that tests can share a cluster."""
    words = re.sub(r"[^\w]+", "-", request.node.name.removeprefix("test_"))
    return f"{words[:40]}-{time.monotonic_ns() % 1_000_000}"
