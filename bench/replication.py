"""The cost of replication: `python -m bench.replication`.

A single nsqd, a node with two members, a node with three members, and a JetStream cluster of three
nats-servers (stream and consumer with three replicas, stored in files) take turns on one machine.
All messages have 200 bytes. The rows:

    mpub     4 connections, each with one batch of 100 messages in flight. For JetStream a batch is
             100 PUBs in one write, each acknowledged by the stream
    backlog  2 consumers receive and finish the messages of mpub, at most 5,000 in flight;
             JetStream: a push consumer with explicit acknowledgements
    live     publish as in mpub and consume as in backlog, at the same time
    pub1     1 connection with one message in flight
    pub32    32 connections with one message in flight each

The rows mpub, pub1 and pub32 are measured with --sync-every=1, too, without JetStream: nats-server
has no such setting before version 2.10.

Members are on 127.0.0.1 and share the disk. CPU is that of the leader (the nats-server that leads
stream and consumer; clients connect to it), and of all members together, without etcd. A figure is
the median of the repetitions; a ratio is the median of the ratios within a repetition.
"""

import http.client
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import click

from bench.figures import METRICS, Figures, Results, Sample, percentile
from bench.load import BODY, Address, Consumer, Crew, Load, LoadError, Outcome, Reader, read_some
from bench.nats import JetStream, NatsReader, dial_publisher, has_nats, run_jetstream
from bench.nsq import OK, SELDOM, NsqReader, dial, mpub, pub
from bench.procfs import cpu_seconds
from penstock.testing.etcd import has_etcd
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.replicated import run_replicated_node

__all__ = ["main"]

CHANNEL = "readers"
READERS = 2
BATCH = 100
BATCH_CONNECTIONS = 4

SINGLE = "single"
TWO = "2 members"
THREE = "3 members"
JETSTREAM = "jetstream"

CHECK_NS = 20_000_000
"""How often a publisher looks at the leader's CPU time."""


class PublishConnection(NamedTuple):
    """A connection, the bytes that publish one batch on it, and whether a reply is complete."""

    socket: socket.socket
    request: bytes
    is_reply: Callable[[bytes], bool]


class Location(NamedTuple):
    """The leader of a topic, and its followers."""

    address: Address
    leader_pid: int
    follower_pids: tuple[int, ...]


class Group(Protocol):
    """Servers that hold copies of the same messages."""

    name: str

    def create(self, topic: str) -> Location:
        """Create a topic and its channel."""

    def delete(self, topic: str) -> None: ...

    def dial(self, at: Location, topic: str, batch: int) -> PublishConnection: ...

    def reader(self, at: Location, topic: str) -> Reader: ...


class NsqdGroup:
    """A single nsqd, or the members of a node."""

    def __init__(self, name: str, leader: NsqdProcess, followers: Sequence[NsqdProcess]) -> None:
        self.name = name
        self._leader = leader
        host, _, port = leader.tcp_address.rpartition(":")
        pids = tuple(each.pid for each in followers)
        self._at = Location((host, int(port)), leader.pid, pids)

    def create(self, topic: str) -> Location:
        self._post(f"/topic/create?topic={topic}")
        self._post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        return self._at

    def delete(self, topic: str) -> None:
        self._post(f"/topic/delete?topic={topic}")

    def dial(self, at: Location, topic: str, batch: int) -> PublishConnection:
        request = pub(topic, BODY) if batch == 1 else mpub(topic, [BODY] * batch)
        return PublishConnection(dial(at.address, SELDOM), request, _is_ok)

    def reader(self, at: Location, topic: str) -> Reader:
        return NsqReader(at.address, topic, CHANNEL)

    def _post(self, target: str) -> None:
        connection = http.client.HTTPConnection(self._leader.http_address, timeout=60)
        try:
            connection.request("POST", target)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise LoadError(f"{self.name}: POST {target}: {response.status}")
        finally:
            connection.close()


class JetStreamGroup:
    """Three nats-servers."""

    name = JETSTREAM

    def __init__(self, cluster: JetStream) -> None:
        self._cluster = cluster

    def create(self, topic: str) -> Location:
        leader, address = self._cluster.create(topic, CHANNEL)
        pids = dict(self._cluster.pids)
        return Location(address, pids.pop(leader), tuple(pids.values()))

    def delete(self, topic: str) -> None:
        self._cluster.delete(topic)

    def dial(self, at: Location, topic: str, batch: int) -> PublishConnection:
        return PublishConnection(*dial_publisher(at.address, topic, batch))

    def reader(self, at: Location, topic: str) -> Reader:
        return NatsReader(at.address, topic, CHANNEL)


@dataclass
class TimedPublisher:
    """Publish on several connections. Each sends the next request when the last one is answered,
    until the leader has used this CPU time, or this many messages were published."""

    dial: Callable[[], PublishConnection]
    connections: int
    batch: int
    leader_pid: int
    cpu_seconds: float = float("inf")
    messages: float = float("inf")

    def prepare(self) -> None:
        self.opened = [self.dial() for _ in range(self.connections)]

    def run(self) -> Outcome:
        by_fd = {each.socket.fileno(): each for each in self.opened}
        received, sent_at, latencies = dict.fromkeys(by_fd, b""), {}, []
        poll = select.epoll()
        stop_at_cpu = cpu_seconds(self.leader_pid) + self.cpu_seconds
        unsent = self.messages
        started_ns = check_at_ns = time.monotonic_ns()
        for fd, each in by_fd.items():
            poll.register(fd, select.EPOLLIN)
            sent_at[fd] = time.monotonic_ns()
            each.socket.sendall(each.request)
            unsent -= self.batch
        waiting = len(by_fd)
        while waiting:
            for fd, _ in poll.poll():
                each = by_fd[fd]
                reply = received[fd] + read_some(each.socket)
                if not each.is_reply(reply):
                    received[fd] = reply
                    continue
                received[fd] = b""
                now_ns = time.monotonic_ns()
                latencies.append(now_ns - sent_at[fd])
                if now_ns >= check_at_ns:
                    check_at_ns = now_ns + CHECK_NS
                    if cpu_seconds(self.leader_pid) >= stop_at_cpu:
                        unsent = 0
                if unsent <= 0:
                    waiting -= 1
                    continue
                unsent -= self.batch
                sent_at[fd] = time.monotonic_ns()
                each.socket.sendall(each.request)
        count = len(latencies) * self.batch
        return Outcome(count, started_ns, time.monotonic_ns(), latencies)


class Measurement:
    """Measures one group once."""

    def __init__(self, group: Group, results: Results, repetition: int, prefix: str = "") -> None:
        self._group = group
        self._results = results
        self._repetition = repetition
        self._prefix = prefix

    def batches(self, seconds: float, *, consume: bool = True) -> None:
        """Publish batches, read them, and do both at the same time."""
        topic = f"batches{self._repetition}"
        at = self._group.create(topic)
        publisher = self._publisher(at, topic, BATCH_CONNECTIONS, BATCH, cpu_seconds=seconds)
        published = self._drive("mpub", at, [publisher])
        if consume:
            self._drive("backlog", at, [self._consumer(at, topic, published)])
            count = max(published // 2, BATCH * BATCH_CONNECTIONS)
            count -= count % (BATCH * BATCH_CONNECTIONS)
            publisher = self._publisher(at, topic, BATCH_CONNECTIONS, BATCH, messages=count)
            self._drive("live", at, [self._consumer(at, topic, count), publisher])
        self._group.delete(topic)

    def singles(self, seconds: float) -> None:
        """Publish messages one by one."""
        for connections in (1, 32):
            topic = f"pub{connections}-{self._repetition}"
            at = self._group.create(topic)
            publisher = self._publisher(at, topic, connections, 1, cpu_seconds=seconds)
            self._drive(f"pub{connections}", at, [publisher])
            self._group.delete(topic)

    def _publisher(
        self,
        at: Location,
        topic: str,
        connections: int,
        batch: int,
        *,
        cpu_seconds: float = float("inf"),
        messages: float = float("inf"),
    ) -> TimedPublisher:
        opened = partial(self._group.dial, at, topic, batch)
        return TimedPublisher(opened, connections, batch, at.leader_pid, cpu_seconds, messages)

    def _consumer(self, at: Location, topic: str, count: int) -> Consumer:
        return Consumer([self._group.reader(at, topic) for _ in range(READERS)], count)

    def _drive(self, row: str, at: Location, loads: Sequence[Load]) -> int:
        """Run processes, add their figures, and return the number of messages of the first."""
        pids = (at.leader_pid, *at.follower_pids)
        with Crew(loads) as crew:
            before = [cpu_seconds(pid) for pid in pids]
            outcomes = crew.go()
            used = [cpu_seconds(pid) - cpu for pid, cpu in zip(pids, before, strict=True)]
        figures = _figures(outcomes, used)
        name = self._prefix + row
        self._results.add(Sample(name, self._group.name, self._repetition, figures))
        text = ", ".join(
            f"{METRICS[key].title} {value:,.{METRICS[key].digits}f}"
            for key, value in figures.items()
        )
        click.echo(f"{name} {self._repetition + 1} {self._group.name}: {text}", err=True)
        return outcomes[0].messages


def _figures(outcomes: Sequence[Outcome], used: Sequence[float]) -> Figures:
    started_ns = min(outcome.started_ns for outcome in outcomes)
    finished_ns = max(outcome.finished_ns for outcome in outcomes)
    messages = outcomes[0].messages
    # A run shorter than the kernel's clock tick counts as one tick.
    leader, *followers = (max(each, 0.01) for each in used)
    figures = {
        "rate": messages / (finished_ns - started_ns) * 1e9,
        "per_cpu": messages / leader,
        "per_cpu_of_all": messages / (leader + sum(followers)),
    }
    if followers:
        figures["follower_share"] = sum(followers) / len(followers) / leader
    latencies = sorted(each for outcome in outcomes for each in outcome.latencies_ns)
    if latencies:
        figures["p50_ms"] = percentile(latencies, 0.5) / 1e6
        figures["p99_ms"] = percentile(latencies, 0.99) / 1e6
    return figures


def _is_ok(reply: bytes) -> bool:
    if len(reply) >= len(OK) and reply != OK:
        raise LoadError(f"not an OK: {reply[:60]!r}")
    return reply == OK


@contextmanager
def running_groups(*flags: str, jetstream: bool) -> Iterator[list[Group]]:
    """Run all groups; `flags` are those of every nsqd."""
    with ExitStack() as stack:
        groups: list[Group] = [NsqdGroup(SINGLE, stack.enter_context(run_nsqd(*flags)), ())]
        for name, members in ((TWO, "ab"), (THREE, "abc")):
            settings = (f"--replicas={len(members)}", "--min-in-sync=2", *flags)
            node = stack.enter_context(run_replicated_node(members, settings))
            leader = node.wait_for_leader()
            followers = [each for key, each in node.members.items() if key != leader]
            groups.append(NsqdGroup(name, node.members[leader], followers))
        if jetstream:
            groups.append(JetStreamGroup(stack.enter_context(run_jetstream())))
        yield groups


def measure(results: Results, repeat: int, seconds: float, *, jetstream: bool) -> None:
    """Add the figures of all groups, first with the default interval of fsync, then with an fsync
    before every answer."""
    for prefix, flags in (("", ()), ("sync ", ("--sync-every=1",))):
        with running_groups(*flags, jetstream=jetstream and not prefix) as groups:
            for repetition in range(repeat):
                # The first group may find the machine in another state, so the order rotates.
                turn = repetition % len(groups)
                for group in groups[turn:] + groups[:turn]:
                    measurement = Measurement(group, results, repetition, prefix)
                    if prefix:
                        # An fsync takes longer than CPU, so these rows would take very long.
                        measurement.batches(seconds / 2, consume=False)
                        measurement.singles(seconds / 4)
                    else:
                        measurement.batches(seconds)
                        measurement.singles(seconds / 2)
                load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
                click.echo(f"load of the machine: {load}", err=True)


def print_table(results: Results) -> None:
    """Print medians, and ratios of the messages per CPU-second of the leader."""
    keys = ("rate", "per_cpu", "per_cpu_of_all", "p50_ms", "p99_ms", "follower_share")
    titles = ["msgs/s", "/leader CPU-s", "/CPU-s of all", "p50 ms", "p99 ms", "follower/leader"]
    titles += ["of single", "of jetstream"]
    click.echo(f"{'':22}" + "".join(f"{title:>16}" for title in titles))
    for row in results.rows():
        for group in (SINGLE, TWO, THREE, JETSTREAM):
            values = [results.median(row, key, group) for key in keys]
            if values[0] is None:
                continue
            values += [
                results.advantage(row, "per_cpu", over, group) if over != group else None
                for over in (SINGLE, JETSTREAM)
            ]
            digits = [*(METRICS[key].digits for key in keys), 2, 2]
            cells = (
                "" if value is None else f"{value:,.{places}f}"
                for value, places in zip(values, digits, strict=True)
            )
            click.echo(f"{row:11}{group:11}" + "".join(f"{cell:>16}" for cell in cells))


@click.command()
@click.option("--repeat", default=3, show_default=True, help="Repetitions of each measurement.")
@click.option(
    "--cpu-seconds",
    "seconds",
    default=5.0,
    show_default=True,
    help="CPU time of the leader in the row mpub. Single messages have half of it, and rows with"
    " --sync-every=1 half of that of the others.",
)
@click.option("--jetstream/--no-jetstream", default=True, help="Also measure JetStream.")
def main(*, repeat: int, seconds: float, jetstream: bool) -> None:
    """Measure a single nsqd, replicated nodes, and a JetStream cluster."""
    if not has_etcd():
        sys.exit("replication needs etcd: apt-get install etcd-server")
    if jetstream and not has_nats():
        click.echo("nats-server is not installed: measuring without it", err=True)
        jetstream = False
    results = Results()
    measure(results, repeat, seconds, jetstream=jetstream)
    print_table(results)


if __name__ == "__main__":
    main()
