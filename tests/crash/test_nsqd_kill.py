"""Repeated kill -9 under load loses no acknowledged message.

A producer publishes as fast as nsqd responds. A consumer finishes its messages and sends a publish
after each batch of FINs; the OK proves that nsqd has processed them. A second channel, which is
read only at the end, must then contain all messages.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from tests.crash.leader import RunNsqd, copies
from tests.seeds import fresh_random

from penstock.protocol import commands
from penstock.protocol.frames import MessageFrame, ResponseFrame
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import DisconnectedError, RawClient
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

# KILLS=50 for a long run.
KILLS = int(os.environ.get("KILLS", "20"))
MESSAGES_BETWEEN_KILLS = 2_000

TOPIC = "t"
DEFER_MS = 400
REQUEUE_EVERY = 100
REQUEUE_MS = 50

CONNECTION_LOST = (DisconnectedError, ConnectionError, TimeoutError)


@dataclass
class Ledger:
    """Records, for each body, which replies and deliveries the clients have seen."""

    numbers: Iterator[int] = field(default_factory=count)
    acknowledged: set[bytes] = field(default_factory=set)
    due_at: dict[bytes, float] = field(default_factory=dict)
    received: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    redelivered: int = 0
    """Deliveries of messages whose FIN nsqd had received before it was killed."""
    too_early: list[bytes] = field(default_factory=list)

    def next_bodies(self, number: int) -> list[bytes]:
        return [b"%010d" % next(self.numbers) for _ in range(number)]

    def note_delivery(self, body: bytes) -> None:
        self.received.add(body)
        if time.time() < self.due_at.get(body, 0.0):
            self.too_early.append(body)
        self.redelivered += body in self.finished


def produce(client: RawClient, ledger: Ledger) -> None:
    while True:
        several, (single,), (deferred,) = map(ledger.next_bodies, (40, 1, 1))
        ledger.due_at[deferred] = time.time() + DEFER_MS / 1000
        client.send(
            commands.mpub(TOPIC, several),
            commands.pub(TOPIC, single),
            commands.dpub(TOPIC, DEFER_MS, deferred),
        )
        for bodies in (several, [single], [deferred]):
            assert b"OK" == client.response()
            ledger.acknowledged.update(bodies)


def consume(client: RawClient, ledger: Ledger) -> None:
    client.subscribe(TOPIC, "work", rdy=200)
    waiting: list[MessageFrame] = []
    while True:
        batch = waiting or [client.message(), *received_messages(client)]
        waiting = finish(client, ledger, batch)


def finish(client: RawClient, ledger: Ledger, batch: list[MessageFrame]) -> list[MessageFrame]:
    """Finish a batch; requeue some messages first. Returns messages received meanwhile."""
    answers, finished = [], []
    for message in batch:
        ledger.note_delivery(message.body)
        if message.attempts == 1 and int(message.body) % REQUEUE_EVERY == 0:
            answers.append(commands.req(message.id, REQUEUE_MS))
        else:
            answers.append(commands.fin(message.id))
            finished.append(message.body)
    client.send(*answers, commands.pub("proof", b"x"))
    meanwhile = []
    while isinstance(frame := client.next_frame(), MessageFrame):
        meanwhile.append(frame)
    assert ResponseFrame(b"OK") == frame
    ledger.finished.update(finished)
    return meanwhile


def received_messages(client: RawClient) -> list[MessageFrame]:
    return [frame for frame in client.received_frames() if isinstance(frame, MessageFrame)]


def until_lost(
    work: Callable[[RawClient, Ledger], None], client: RawClient, ledger: Ledger
) -> None:
    with client, suppress(*CONNECTION_LOST):
        work(client, ledger)


def load_until_killed(nsqd: NsqdProcess, ledger: Ledger, chance: Random) -> None:
    threads = [
        threading.Thread(target=until_lost, args=(work, RawClient(nsqd.tcp_address), ledger))
        for work in (produce, consume)
    ]
    for thread in threads:
        thread.start()
    enough = len(ledger.acknowledged) + MESSAGES_BETWEEN_KILLS
    wait_until(lambda: len(ledger.acknowledged) >= enough, "enough publishes")
    time.sleep(chance.uniform(0, 0.2))  # at a random moment
    nsqd.kill()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


# Small files, so that segments are created, closed and deleted under load.
SMALL_FILES = "--max-bytes-per-file=1000000"


@pytest.mark.parametrize(
    ("kills", "flags"),
    [
        (KILLS, [SMALL_FILES]),
        pytest.param(
            KILLS // 4,
            [SMALL_FILES, "--sync-every=1", "--mem-queue-size=100"],
            marks=pytest.mark.on_leader,
        ),
    ],
    ids=["default", "sync-every-1"],
)
def test_kill_loses_no_acknowledged_message(
    run_nsqd: RunNsqd, kills: int, flags: list[str]
) -> None:
    chance = fresh_random("test_kill_loses_no_acknowledged_message")
    with run_nsqd(*flags) as nsqd:
        ledger = Ledger()
        for channel in ("work", "audit"):
            nsqd.consumer(TOPIC, channel, rdy=0).close()
        for _ in range(kills):
            load_until_killed(nsqd, ledger, chance)
            nsqd.check_log()
            nsqd.check_data_path()
            nsqd.restart()
        drain(nsqd, "work", ledger.acknowledged - ledger.received, ledger.note_delivery)
        audited: list[bytes] = []
        drain(nsqd, "audit", ledger.acknowledged, audited.append)
    print(f"{len(ledger.acknowledged)} acknowledged, {ledger.redelivered} delivered again")

    assert set() == ledger.acknowledged - ledger.received
    assert [] == ledger.too_early
    assert set() == ledger.acknowledged - set(audited)
    in_order = [body for body in dict.fromkeys(audited) if body not in ledger.due_at]
    assert sorted(in_order) == in_order


def test_finished_messages_stay_finished_once_the_journal_is_written(run_nsqd: RunNsqd) -> None:
    """The simulation tests with a manual clock when nsqd writes the journal."""
    with run_nsqd() as nsqd:
        consumer = nsqd.consumer(TOPIC, "work", rdy=2)
        nsqd.publish(TOPIC, b"finished", b"open")
        finished, _open = consumer.messages(2)
        sizes = journal_sizes(nsqd)
        consumer.send(commands.fin(finished.id))
        wait_until(
            lambda: all(now > size for now, size in zip(journal_sizes(nsqd), sizes, strict=True)),
            "the FIN to be journalled",
        )
        nsqd.kill()
        nsqd.restart()

        assert b"open" == nsqd.consumer(TOPIC, "work", rdy=2).message().body
        assert nsqd.shows(TOPIC, "work", depth=0, in_flight_count=1)


def journal_sizes(nsqd: NsqdProcess) -> list[int]:
    """Size of the journal in each copy of the data path."""
    journals = [path / "topics" / TOPIC / "cursors.1" for path in copies(nsqd)]
    return [journal.stat().st_size for journal in journals]


def drain(
    nsqd: NsqdProcess, channel: str, wanted: set[bytes], note: Callable[[bytes], None]
) -> None:
    """Receive and finish messages of a channel until all `wanted` were received."""
    client = nsqd.consumer(TOPIC, channel, rdy=2500)
    missing = set(wanted)
    while missing:
        batch = [client.message(), *received_messages(client)]
        for message in batch:
            note(message.body)
            missing.discard(message.body)
        client.send(*(commands.fin(message.id) for message in batch))
