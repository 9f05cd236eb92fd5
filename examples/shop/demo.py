"""Shows what Penstock is for: a shop's events go through two brokers into Spark, one broker is
killed, and in the end everything is counted.

    make demo                  # about two minutes
    make demo KEEP=1           # and then leaves it running, to look around

The brokers, the generator of events and Spark's jobs are the real programs, in processes of their
own and in a temporary folder. The end is a table of checks: what was acknowledged is compared, id
by id, with what has been archived, aggregated, joined and replayed. The exit code is 1 if one of
them does not hold.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from examples.shop.checks import checks, remarks
from examples.shop.cluster import Cluster, running_cluster
from examples.shop.events import TOPICS
from examples.shop.found import Places, look, paid_orders, revenue
from examples.shop.jobs import Generating, Job, JobFailed, running_jobs
from examples.shop.ledger import Ledger, read_ledger
from examples.shop.scenes import InVain, Stage
from rich.console import Console

from penstock.common.errors import Error
from penstock.pipelines.lake import Lake
from penstock.pipelines.lake_writer import Commits
from penstock.testing.daemon import DaemonStartError

HERE = Path(__file__).parent
REPORT = Path("build/demo/report.html")
"""Where the report is to be found when all else is gone."""

EVENTS_PER_SECOND = 3000
OPEN_SECONDS = 45.0

# Quiet cores need a tenth of it.
TIMEOUT_SECONDS = 400.0

RESULTS = ("revenue", "orders.paid", "orders.rejected", "orders.again")
"""The topics that Spark publishes to."""

PLACES = (
    *((topic, "penstock-archive") for topic in TOPICS),
    *(("orders", f"shop.{each}") for each in ("revenue", "paid_orders", "rejects.orders")),
    ("payments", "shop.paid_orders"),
    ("clicks", "shop.pages"),
)
"""Where Spark's queries stand: topics and channels."""

# What is the same in all events; an event that has no time, or none that is one, is broken.
LAKE_SCHEMA = (
    "ts TIMESTAMP NOT NULL, order_id STRING, customer STRING, page STRING,"
    " amount DECIMAL(12, 2), paid DECIMAL(12, 2)"
)


class Demo:
    """The show, scene by scene. Each raises JobFailed or InVain if it cannot go on."""

    def __init__(self, stage: Stage, cluster: Cluster, folder: Path) -> None:
        self._stage = stage
        self._cluster = cluster
        self._folder = folder
        self._lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
        self._lake = Lake(folder / "lake")
        self.places = Places(str(folder), cluster.http_addresses)
        self.report = folder / "report.html"
        (folder / "scratch").mkdir()

    def run(self, *, rate: float, seconds: float) -> bool:
        """Whether every check holds."""
        self.show_cluster()
        with running_jobs(self._folder) as start:
            archive = start("archive", self.archive_command())
            stream = start("stream", ("stream", str(HERE / "stream.toml"), self._lookupd))
            self.wait_for_spark(archive, stream)
            with self.open_shop(rate, seconds) as shop:
                watch = Watch(shop, archive, stream)
                self.kill_a_broker(watch, rate, seconds)
                self.close_shop(watch)
        self.tell_what_spark_did(archive, stream)
        self.replay_and_report()
        return self.check()

    def show_cluster(self) -> None:
        self._stage.scene("Brokers")
        cluster = self._cluster
        self._stage.tell(f"nsqlookupd  http://{cluster.nsqlookupd.http_address}")
        for nsqd in cluster.nsqds:
            self._stage.tell(f"nsqd        {nsqd.tcp_address} (TCP)  http://{nsqd.http_address}")
        self._stage.tell(f"nsqadmin    {cluster.nsqadmin.url}  <- look on while it runs")
        for topic in (*TOPICS, *RESULTS):
            cluster.create_topic(topic)
        (self._folder / "demo.json").write_bytes(msgspec.json.encode(self.places))

    def archive_command(self) -> Sequence[str]:
        flags = ("--lake=lake", f"--schema={LAKE_SCHEMA}", "--trigger=5s")
        return ("archive", *TOPICS, *flags, self._lookupd)

    def wait_for_spark(self, archive: Job, stream: Job) -> None:
        """Until each query has its place on the brokers."""
        self._stage.scene("Spark")
        self._stage.tell("penstock archive  every event to a lake of Parquet files")
        self._stage.tell(
            "penstock stream   revenue by windows of 10 s; orders joined with payments"
        )

        def missing() -> int:
            archive.check_runs()
            stream.check_runs()
            return sum(self._cluster.depth(*place) is None for place in PLACES)

        self._stage.wait(
            lambda: not missing(),
            "starting two of them",
            seconds=TIMEOUT_SECONDS,
            progress=lambda: f"{missing()} of {len(PLACES)} places to be taken",
        )
        self._stage.tell("all queries run")

    @contextmanager
    def open_shop(self, rate: float, seconds: float) -> Iterator[Generating]:
        self._stage.scene(f"The shop is open: {rate:,.0f} events a second for {seconds:.0f} s")
        tcp_addresses = [nsqd.tcp_address for nsqd in self._cluster.nsqds]
        shop = Generating(self.places.ledger, tcp_addresses, rate=rate, seconds=seconds)
        try:
            yield shop
        finally:
            shop.end()

    def kill_a_broker(self, watch: "Watch", rate: float, seconds: float) -> None:
        """In full swing; the other one carries on alone until it is back."""
        victim = self._cluster.nsqds[1]

        def wait_for(count: float) -> None:
            self._stage.wait(
                lambda: watch.acknowledged() >= count or watch.step() != "open",
                "events",
                seconds=TIMEOUT_SECONDS,
                progress=lambda: self._progress(watch),
            )

        wait_for(rate * seconds / 3)
        victim.kill()
        killed_at = watch.acknowledged()
        self._stage.tell(f"kill -9: one nsqd is gone, after {killed_at:,} events", "bold red")
        wait_for(killed_at + rate * min(seconds / 10, 3))
        began = time.monotonic()
        victim.start()
        took = time.monotonic() - began
        self._stage.tell(f"it is back, {took:.1f} s after it was started again", "bold green")
        self._stage.wait(
            lambda: watch.step() != "open",
            "events",
            seconds=TIMEOUT_SECONDS,
            progress=lambda: self._progress(watch),
        )
        self._stage.tell(f"{watch.acknowledged():,} events were acknowledged")

    def close_shop(self, watch: "Watch") -> None:
        """Spark must have seen all others before the order comes that ends their windows."""
        self._stage.scene("The shop is closed, and Spark comes to the end")
        self._stage.wait(
            lambda: watch.step() and not self._behind(),
            "queries that are still behind:",
            seconds=TIMEOUT_SECONDS,
            progress=self._behind_in_words,
        )
        watch.shop.close_shop()
        self._stage.wait(lambda: watch.step() == "done", "the last order", seconds=TIMEOUT_SECONDS)
        ledger = read_ledger(self.places.ledger)
        try:
            self._stage.wait(
                lambda: watch.step() and self._is_complete(ledger),
                "the last windows",
                seconds=TIMEOUT_SECONDS,
                progress=lambda: self._progress(watch),
            )
        except InVain as failure:  # the checks will say what is missing
            self._stage.tell(str(failure), "bold red")

    def tell_what_spark_did(self, *jobs: Job) -> None:
        for job in jobs:
            for line in job.results():
                self._stage.tell(f"{job.name:8} {line}")

    def replay_and_report(self) -> None:
        self._stage.scene("Out of the lake: the last hour of orders once more, and a report")
        replay_flags = ("--lake=lake", "--from=1h", "--yes", self._lookupd)
        report_flags = ("--lake=lake", "--event-time=value.ts", f"--out={self.report}")
        with running_jobs(self._folder) as start:
            replay = start("replay", ("replay", "orders", "orders.again", *replay_flags))
            report = start("report", ("report", *report_flags))
            self._stage.wait(
                lambda: replay.has_ended() and report.has_ended(),
                "penstock replay, penstock report",
                seconds=TIMEOUT_SECONDS,
            )
        self.tell_what_spark_did(replay)

    def check(self) -> bool:
        """Whether all is as it should be."""
        self._stage.scene("Sent, archived, aggregated, replayed")
        return check(self._stage, self.places)

    def tell_the_end(self, *, is_right: bool, is_kept: bool) -> None:
        """And where to look."""
        verdict = f"all equal, after {self._stage.clock}" if is_right else "not all is equal"
        self._stage.tell(f"\n  {verdict}", "bold green" if is_right else "bold red")
        if is_kept:
            self._stage.tell(f"nsqadmin   {self._cluster.nsqadmin.url}")
            self._stage.tell(f"report     {self.report}")
            self._stage.tell(f"the rest   {self._folder}  (stays there)")
            self._stage.tell(f"once more  .venv/bin/python -m examples.shop.check {self._folder}")
            self._stage.tell("Ctrl-C stops it all")
        else:
            REPORT.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.report, REPORT)
            self._stage.tell(f"report     {REPORT}")
            self._stage.tell("nsqadmin   make demo KEEP=1 leaves it running, to look around")

    # How far it is.

    def _progress(self, watch: "Watch") -> str:
        return f"{watch.acknowledged():,} acknowledged, {self._archived():,} archived"

    def _archived(self) -> int:
        return sum(Commits.load_state(self._lake.topic(topic)).messages for topic in TOPICS)

    def _behind(self) -> dict[tuple[str, str], int | None]:
        """Where Spark has not read to the end, and how many messages that is."""
        depths = {place: self._cluster.depth(*place) for place in PLACES}
        return {place: depth for place, depth in depths.items() if depth != 0}

    def _behind_in_words(self) -> str:
        depths = self._behind().values()
        return f"{len(depths)}, by {sum(depth or 0 for depth in depths):,} messages in all"

    def _is_complete(self, ledger: Ledger) -> bool:
        """Whether all has come, as far as numbers tell; what has come is looked at later."""
        is_archived = all(
            Commits.load_state(self._lake.topic(topic)).next_seqs == self._cluster.next_seqs(topic)
            for topic in TOPICS
        )
        return (
            is_archived
            and len(revenue(self.places.nsqds)) >= len(ledger.revenue())
            and len(paid_orders(self.places.nsqds)) >= len(ledger.paid())
        )


def check(stage: Stage, places: Places) -> bool:
    """Compares what was acknowledged with what there is, and shows that."""
    ledger, found = read_ledger(places.ledger), look(places)
    results = checks(ledger, found)
    stage.summary(results, remarks(ledger, found))
    return not any(result.fault for result in results)


class Watch:
    """Looks at how far the shop is, and after those who have to run meanwhile."""

    def __init__(self, shop: Generating, *jobs: Job) -> None:
        self.shop = shop
        self._jobs = jobs

    def acknowledged(self) -> int:
        return self.shop.status.acknowledged

    def step(self) -> str:
        """What the shop is at. Raises JobFailed if it, or a job, has ended."""
        self.shop.check_runs()
        for job in self._jobs:
            job.check_runs()
        return self.shop.status.step


def main() -> int:
    parser = argparse.ArgumentParser(description="A shop's events, two brokers, Spark, a kill -9.")
    parser.add_argument("--rate", type=float, default=EVENTS_PER_SECOND, help="events a second")
    parser.add_argument("--seconds", type=float, default=OPEN_SECONDS, help="the shop is open")
    parser.add_argument("--keep", action="store_true", help="leave it running, and its folder")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    stage = Stage(Console(highlight=False, soft_wrap=True))
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    code = 1
    try:
        with running_cluster(folder) as cluster:
            demo = Demo(stage, cluster, folder)
            code = 0 if demo.run(rate=args.rate, seconds=args.seconds) else 1
            demo.tell_the_end(is_right=code == 0, is_kept=args.keep)
            if args.keep:
                signal.pause()
    except KeyboardInterrupt:
        stage.tell("stopped")
    except (Error, JobFailed, InVain, DaemonStartError, AssertionError) as failure:
        stage.tell(str(failure), "bold red")
        return 1
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Once: nothing keeps us from cleaning up then."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
