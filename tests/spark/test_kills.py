"""Spark's driver and nsqd are killed (SIGKILL) while messages are published and archived.

In history mode, every message is in the table exactly once, also if the node ids are equal; in
channel mode, at least once. The environment variable `KILLS=10` increases the number of kills from
one.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Archive, history, stream

from penstock.client.blocking import Producer
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until

KILLS = int(os.environ.get("KILLS", "1"))
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(240 + 60 * KILLS)]


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd() as running:
        yield running


@pytest.fixture
def nsqds(lookupd: NsqlookupdProcess) -> Iterator[list[NsqdProcess]]:
    flags = ("--retention-time=1h", "--broadcast-address=127.0.0.1")
    known = f"--lookupd-tcp-address={lookupd.tcp_address}"
    with (
        run_nsqd("--node-id=1", known, *flags) as one,
        run_nsqd("--node-id=2", known, *flags) as two,
    ):
        wait_until(lambda: nodes_known(lookupd) == 2, "both nodes to be known")
        yield [one, two]


def nodes_known(lookupd: NsqlookupdProcess) -> int:
    return len(lookupd.http("GET", "/nodes").json()["producers"])


@contextmanager
def publishing(*connect: Callable[[], Producer]) -> Iterator[list[str]]:
    """Publishes messages continuously, by the producers in turn. Yields the confirmed bodies."""
    over = threading.Event()
    published: list[str] = []

    def publish() -> None:
        with ExitStack() as stack:
            producers = cycle([stack.enter_context(each()) for each in connect])
            while not over.wait(0.2):
                first = len(published)
                bodies = [f"{number:08}" for number in range(first, first + 100)]
                next(producers).publish_many("orders", [body.encode() for body in bodies])
                published.extend(bodies)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield published
    finally:
        over.set()
        thread.join()


@contextmanager
def driver(lookupd: NsqlookupdProcess, folder: Path, mode: str) -> Iterator[None]:
    """Run a driver until it has committed some batches, and a moment longer."""
    commits = folder / "checkpoint" / "commits"
    committed = count(commits)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", lookupd.http_address, str(folder), mode],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
        wait_until(
            lambda: count(commits) >= committed + 3 or process.poll() is not None,
            "batches",
            seconds=180,
        )
        assert process.poll() is None, (folder / "log").read_text()
        over = threading.Event()
        over.wait(random.random())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def count(folder: Path) -> int:
    return sum(1 for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else 0


@pytest.mark.parametrize("mode", ["history", "channel"])
def test_every_message_is_archived(
    spark: SparkSession,
    lookupd: NsqlookupdProcess,
    nsqds: list[NsqdProcess],
    tmp_path: Path,
    mode: str,
) -> None:
    archive = Archive(spark, tmp_path)
    with publishing(lambda: Producer(lookupd=f"http://{lookupd.http_address}")):
        for _ in range(KILLS):
            with driver(lookupd, tmp_path, mode):
                victim = random.choice(nsqds)
                victim.kill()
                victim.restart()

    frame = stream(spark, lookupd=lookupd.http_address, topic="orders", channel="spark", mode=mode)
    archive.take_what_is_there(frame)

    archived = sorted(row.id for row in archive.rows().select("id").collect())
    stored = sorted(message["id"] for nsqd in nsqds for message in history(nsqd, "orders"))
    assert stored == (archived if mode == "history" else sorted(set(archived)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [(), ("--node-id=5",)], ids=["default-flags", "equal-node-ids"])
def test_every_message_of_two_nsqds_on_one_host_is_archived_once(
    spark: SparkSession, lookupd: NsqlookupdProcess, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    known = f"--lookupd-tcp-address={lookupd.tcp_address}"
    shared = (*flags, known, "--broadcast-address=127.0.0.1")
    archive = Archive(spark, tmp_path)
    with run_nsqd(*shared) as one, run_nsqd(*shared) as two:
        wait_until(lambda: nodes_known(lookupd) == 2, "both nodes to be known")
        producers = (lambda: Producer(one.tcp_address), lambda: Producer(two.tcp_address))
        with publishing(*producers) as published:
            for _ in range(max(KILLS, 5)):
                with driver(lookupd, tmp_path, "history"):
                    pass
        frame = stream(spark, lookupd=lookupd.http_address, topic="orders", channel="spark")
        archive.take_what_is_there(frame)

    assert published
    assert sorted(published) == archive.bodies()
    assert 2 == archive.rows().select("log").distinct().count()
