"""Random faults of a replicated node on four hosts, with a ledger of all acknowledged messages.

    python -m tests.crash.replication_proof --runs 50

Each run has three members and an etcd, each in its own network namespace, real clients (ours and
gnsq publish, pynsq and nsqjs consume, ours reads everything at the end), and several random faults:
kill -9 and SIGSTOP of leader, follower and etcd; cuts and one-way cuts of the network; a full disk;
an empty disk; all members killed at once. After each run no acknowledged message may be missing, no
data path damaged, and all logs must be equal.

It needs Linux, root, iproute2 and etcd.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from tests.crash.disks import fill_disk
from tests.crash.hosts import Host, ip
from tests.crash.replicated_load import CHANNEL, TOPIC, LedgerProducer, read_channel
from tests.interop.test_discovery import Client

from penstock.testing.etcd import EtcdProcess
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.replicated import (
    CLUSTER,
    FAST_TAKEOVER,
    NODE,
    MemberProcess,
    ReplicatedNode,
)
from penstock.testing.waiting import wait_until

NETWORK = "10.214.0"
HERE = f"{NETWORK}.254"
MEMBERS = ("a", "b", "c")
DISK_BYTES = 256 << 20

CONSUMERS = ("pynsq", "nsqjs")

TAKEOVER_SECONDS = 60.0


class Lab:
    """A bridge with a host for each member, and one for etcd."""

    def __init__(self, name: str) -> None:
        self.bridge = f"{name}br"
        self.members = {
            member: Host(name, f"{NETWORK}.{number}") for number, member in enumerate(MEMBERS, 1)
        }
        self.etcd = Host(name, f"{NETWORK}.{len(MEMBERS) + 1}")
        self._cuts: list[tuple[Host, Host]] = []

    @property
    def hosts(self) -> list[Host]:
        return [*self.members.values(), self.etcd]

    def cut(self, host: Host, other: Host) -> None:
        """Drop all packets from one host to another."""
        host.cut_towards(other)
        self._cuts.append((host, other))

    def heal(self) -> None:
        """End all cuts."""
        while self._cuts:
            host, other = self._cuts.pop()
            host.heal_towards(other)


@contextmanager
def cabled(name: str) -> Iterator[Lab]:
    lab = Lab(name)
    with ExitStack() as stack:
        ip("link", "add", lab.bridge, "type", "bridge")
        stack.callback(ip, "link", "delete", lab.bridge)
        ip("address", "add", f"{HERE}/24", "dev", lab.bridge)
        ip("link", "set", lab.bridge, "up")
        for host in lab.hosts:
            stack.callback(host.tear_down)
            host.set_up(lab.bridge)
        yield lab


class Run:
    """One node with its load and its faults."""

    def __init__(
        self, lab: Lab, node: ReplicatedNode, producer: LedgerProducer, chance: random.Random
    ) -> None:
        self.takeovers: list[float] = []
        self.done: list[str] = []
        self._lab = lab
        self._node = node
        self._producer = producer
        self._chance = chance
        self._faults: list[Callable[[], None]] = [
            self.kill_leader,
            self.suspend_leader,
            self.terminate_leader,
            self.kill_follower,
            self.suspend_follower,
            self.kill_etcd,
            self.suspend_etcd,
            self.cut_leader_off,
            self.cut_what_the_leader_sends,
            self.cut_what_the_leader_receives,
            self.cut_leader_from_etcd,
            self.cut_follower_off,
            self.cut_between_leader_and_follower,
            self.fill_disk_of_leader,
            self.fill_disk_of_follower,
            self.replace_disk_of_follower,
            self.kill_all,
        ]

    def inject(self, number: int) -> None:
        """One fault, its repair, and further publishes. The number chooses it."""
        fault = self._faults[number % len(self._faults)]
        self.done.append(fault.__name__)
        fault()
        self._lab.heal()
        self._node.start()
        self._producer.await_progress()
        if self._chance.random() < 0.7:
            # Otherwise the next fault meets a member that is still catching up. No message is
            # promised to survive a fault of the last copy.
            self._node.wait_in_sync(len(MEMBERS))
        else:
            wait_until(lambda: len(self._node.in_sync()) >= 2, "two members in sync")

    # Faults of processes.

    def kill_leader(self) -> None:
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        self._node.kill(leader)
        self._await_takeover(leader, since)

    def suspend_leader(self) -> None:
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        self._node.suspend(leader)
        self._await_takeover(leader, since)
        self._node.resume(leader)

    def terminate_leader(self) -> None:
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        self._node.terminate(leader)
        self._await_takeover(leader, since)

    def kill_follower(self) -> None:
        self._node.kill(self._follower())
        self._go_on()

    def suspend_follower(self) -> None:
        follower = self._follower()
        self._node.suspend(follower)
        self._go_on()
        self._node.resume(follower)

    def kill_etcd(self) -> None:
        self._node.etcd.kill()
        self._go_on()
        self._node.etcd.start()

    def suspend_etcd(self) -> None:
        self._node.etcd.suspend()
        self._go_on()
        self._node.etcd.resume()

    def kill_all(self) -> None:
        if self._chance.random() < 0.5:
            self._node.etcd.kill()
            self._node.kill()
            self._node.etcd.start()
        else:
            self._node.kill()

    # Faults of the network.

    def cut_leader_off(self) -> None:
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        for other in self._others(leader):
            self._lab.cut(self._lab.members[leader], other)
            self._lab.cut(other, self._lab.members[leader])
        self._await_takeover(leader, since)

    def cut_what_the_leader_sends(self) -> None:
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        for other in self._others(leader):
            self._lab.cut(self._lab.members[leader], other)
        self._await_takeover(leader, since)

    def cut_what_the_leader_receives(self) -> None:
        """What the leader asks etcd for is still done, so it must not ask for the removal of both
        followers."""
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        for other in self._others(leader):
            self._lab.cut(other, self._lab.members[leader])
        self._await_takeover(leader, since)

    def cut_leader_from_etcd(self) -> None:
        """The followers still acknowledge to the leader, until one of them takes over."""
        leader = self._node.wait_for_leader()
        since = time.monotonic()
        self._lab.cut(self._lab.members[leader], self._lab.etcd)
        self._lab.cut(self._lab.etcd, self._lab.members[leader])
        self._await_takeover(leader, since)

    def cut_follower_off(self) -> None:
        follower = self._follower()
        is_one_way = self._chance.random() < 0.5
        for other in self._others(follower):
            self._lab.cut(self._lab.members[follower], other)
            if not is_one_way:
                self._lab.cut(other, self._lab.members[follower])
        self._go_on()

    def cut_between_leader_and_follower(self) -> None:
        leader, follower = self._node.wait_for_leader(), self._follower()
        ends = [self._lab.members[leader], self._lab.members[follower]]
        self._chance.shuffle(ends)
        self._lab.cut(ends[0], ends[1])
        if self._chance.random() < 0.5:
            self._lab.cut(ends[1], ends[0])
        self._go_on()

    # Faults of disks.

    def fill_disk_of_leader(self) -> None:
        with full_disk(self._node.members[self._node.wait_for_leader()]):
            self._producer.await_refusal()

    def fill_disk_of_follower(self) -> None:
        with full_disk(self._node.members[self._follower()]):
            self._go_on()

    def replace_disk_of_follower(self) -> None:
        follower = self._follower()
        self._node.kill(follower)
        self._node.replace_disk(follower)

    # Internal.

    def _follower(self) -> str:
        leader = self._node.wait_for_leader()
        return self._chance.choice([name for name in MEMBERS if name != leader])

    def _others(self, member: str) -> list[Host]:
        return [host for host in self._lab.hosts if host is not self._lab.members[member]]

    def _go_on(self) -> None:
        """Publishing must go on for a random time, which may be longer than all timeouts."""
        until = time.monotonic() + self._chance.uniform(0.2, 6)
        while time.monotonic() < until:
            self._producer.await_progress()

    def _await_takeover(self, leader: str, since: float) -> None:
        """Wait until another member has acknowledged a publish."""

        def first_at() -> float | None:
            others = (
                each.at
                for each in reversed(self._producer.acknowledgements)
                if each.member != leader and each.at > since
            )
            return min(others, default=None)

        try:
            taken_over_at = wait_until(first_at, "a takeover", seconds=TAKEOVER_SECONDS)
        except AssertionError as timeout:
            raise AssertionError(f"{timeout}\n{self._node.logs()}") from None
        assert taken_over_at is not None
        self.takeovers.append(taken_over_at - since)


@contextmanager
def full_disk(member: MemberProcess) -> Iterator[None]:
    filler = fill_disk(member.data_path)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=False, timeout=60)


@contextmanager
def running_node(lab: Lab, folder: Path, flags: list[str]) -> Iterator[ReplicatedNode]:
    with ExitStack() as stack:
        address = lab.etcd.address
        (folder / "etcd").mkdir()
        etcd = EtcdProcess(
            folder / "etcd", f"{address}:2379", f"{address}:2380", prefix=lab.etcd.inside
        )
        stack.callback(etcd.kill)
        etcd.start()
        common = [f"--cluster={CLUSTER}", f"--node={NODE}", f"--etcd={etcd.url}", *flags]
        members = {}
        for name, host in lab.members.items():
            stack.enter_context(small_disk(folder / name))
            log_file = stack.enter_context((folder / f"{name}.log").open("w+b"))
            members[name] = MemberProcess(
                name,
                (f"{host.address}:4150", f"{host.address}:4151"),
                folder / name,
                common,
                log_file.fileno(),
                host.inside,
            )
        node = ReplicatedNode(etcd, members)
        stack.callback(node.release)
        node.start()
        node.wait_for_leader()
        node.wait_in_sync(len(members))
        yield node
        wait_until(lambda: set(node.in_sync()) == set(members), "all members in sync")
        node.stop()


class Figures:
    """Results of all runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.failed = 0
        self.faults = 0
        self.acknowledged = 0
        self.delivered = 0
        self.lost = 0
        self.duplicates = 0
        self.takeovers: list[float] = []

    def line(self) -> str:
        times = self.takeovers or [0.0]
        return (
            f"{self.runs} runs, {self.failed} failed, {self.faults} faults, "
            f"{self.acknowledged} acknowledged, {self.lost} lost, "
            f"{self.delivered} delivered, {self.duplicates} of them again; "
            f"{len(self.takeovers)} takeovers: median {median(times):.1f} s, "
            f"maximum {max(times):.1f} s"
        )


def run_once(
    lab: Lab, folder: Path, seed: int, faults: range, flags: list[str], figures: Figures
) -> None:
    chance = random.Random(seed)
    lookupd_flags = [f"--tcp-address={HERE}:0", f"--http-address={HERE}:0"]
    with ExitStack() as stack:
        lookupd = stack.enter_context(run_nsqlookupd(*lookupd_flags))
        flags = [*flags, f"--lookupd-tcp-address={lookupd.tcp_address}"]
        node = stack.enter_context(running_node(lab, folder, flags))
        node.led_by.post(f"/topic/create?topic={TOPIC}")
        consumers = {}
        for name in (CHANNEL, *CONSUMERS):
            node.led_by.post(f"/channel/create?topic={TOPIC}&channel={name}")
        for name in CONSUMERS:
            program = f"{name}_follower.{'js' if name == 'nsqjs' else 'py'}"
            consumers[name] = Client(program, TOPIC, name, lookupd.http_address)
            stack.callback(consumers[name].kill)
        other = Client("gnsq_roaming_producer.py", TOPIC, lookupd.http_address)
        stack.callback(other.kill)
        with LedgerProducer(node, prefix="raw-") as producer:
            run = Run(lab, node, producer, chance)
            producer.await_progress()
            for number in faults:
                run.inject(number)
                print(f"  {run.done[-1]}", flush=True)
            node.wait_in_sync(len(MEMBERS))
            producer.await_progress()
        other.end()
        from_gnsq = {line for line in other.printed() if line.startswith("message ")}
        acknowledged = producer.acknowledged | {line.encode() for line in from_gnsq}
        received = read_channel(node, acknowledged)
        lost = acknowledged - set(received)
        wanted = {body.decode() for body in acknowledged}
        for name, client in consumers.items():
            wait_until(
                lambda client=client: wanted <= set(client.printed()),  # type: ignore[misc]
                f"all messages with {name}",
                seconds=120,
            )
            printed = client.printed()
            figures.delivered += len(printed)
            figures.duplicates += len(printed) - len(set(printed))
        figures.acknowledged += len(acknowledged)
        figures.lost += len(lost)
        figures.takeovers += run.takeovers
        figures.faults += len(run.done)
        print(
            json.dumps(
                {
                    "seed": seed,
                    "faults": run.done,
                    "acknowledged": len(acknowledged),
                    "from_gnsq": len(from_gnsq),
                    "lost": len(lost),
                    "takeovers": [round(each, 1) for each in run.takeovers],
                }
            ),
            flush=True,
        )
        assert not lost, sorted(lost)[:10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50, help="number of runs [default: 50]")
    parser.add_argument("--faults", type=int, default=2, help="faults per run [default: 2]")
    parser.add_argument("--seed", type=int, help="seed of the first run [default: random]")
    parser.add_argument(
        "--default-timeouts", action="store_true", help="nsqd's default timeouts, not short ones"
    )
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
    flags = [] if args.default_timeouts else list(FAST_TAKEOVER)
    figures = Figures()
    order = random.Random(seed)
    with cabled(f"rp{os.getpid() % 100_000}") as lab:
        for number in range(args.runs):
            folder = Path(tempfile.mkdtemp(prefix="replication-proof-"))
            first = order.randrange(1 << 16)
            faults = range(first, first + 5 * args.faults, 5)
            try:
                run_once(lab, folder, seed + number, faults, flags, figures)
            except Exception:  # noqa: BLE001 (reported; the other runs go on)
                figures.failed += 1
                traceback.print_exc()
                print(f"run {number} failed; its logs are in {folder}", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            lab.heal()
            figures.runs += 1
            print(figures.line(), flush=True)
    sys.exit(1 if figures.failed else 0)


if __name__ == "__main__":
    main()
