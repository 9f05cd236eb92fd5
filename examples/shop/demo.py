"""Demo: events of a shop go through two brokers into Spark, one broker is killed, and the results
are checked.

    make demo                  # about two minutes
    make demo KEEP=1           # keeps everything running afterwards

The brokers, the event generator and the Spark jobs run in their own processes, in a temporary
folder. At the end, the acknowledged events are compared by id with the archived, aggregated, joined
and replayed ones. The exit code is 1 if a check fails.
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
from examples.shop.checks import checks, notes
from examples.shop.cluster import Cluster, running_cluster
from examples.shop.console import DemoConsole, WaitTimeoutError
from examples.shop.events import TOPICS
from examples.shop.jobs import GeneratorProcess, Job, JobError, running_jobs
from examples.shop.ledger import Ledger, read_ledger
from examples.shop.results import DemoPaths, paid_orders, read_results, revenue
from rich.console import Console

from penstock.common.errors import Error
from penstock.pipelines.lake import Lake
from penstock.pipelines.lake_writer import Commits
from penstock.testing.daemon import DaemonStartError

HERE = Path(__file__).parent
REPORT = Path("build/demo/report.html")
"""Copy of the report that remains after the demo."""

EVENTS_PER_SECOND = 3000
OPEN_SECONDS = 45.0

# An idle machine needs a tenth of it.
TIMEOUT_SECONDS = 400.0

RESULTS = ("revenue", "orders.paid", "orders.rejected", "orders.again")
"""Topics that Spark publishes to."""

QUERY_CHANNELS = (
    *((topic, "penstock-archive") for topic in TOPICS),
    *(("orders", f"shop.{each}") for each in ("revenue", "paid_orders", "rejects.orders")),
    ("payments", "shop.paid_orders"),
    ("clicks", "shop.pages"),
)
"""Topics and channels of Spark's queries."""

# Fields of all events. An event without a valid time is broken.
LAKE_SCHEMA = (
    "ts TIMESTAMP NOT NULL, order_id STRING, customer STRING, page STRING,"
    " amount DECIMAL(12, 2), paid DECIMAL(12, 2)"
)


class Demo:
    """The steps of the demo. Each raises JobError or WaitTimeoutError if it fails."""

    def __init__(self, console: DemoConsole, cluster: Cluster, folder: Path) -> None:
        self._console = console
        self._cluster = cluster
        self._folder = folder
        self._lookupd = f"--lookupd-http-address={cluster.nsqlookupd.http_address}"
        self._lake = Lake(folder / "lake")
        self.paths = DemoPaths(str(folder), cluster.http_addresses)
        self.report = folder / "report.html"
        (folder / "scratch").mkdir()

    def run(self, *, rate: float, seconds: float) -> bool:
        """Run all steps. Returns whether all checks pass."""
        self.show_cluster()
        with running_jobs(self._folder) as start:
            archive = start("archive", self.archive_command())
            stream = start("stream", ("stream", str(HERE / "stream.toml"), self._lookupd))
            self.wait_for_spark(archive, stream)
            with self.open_shop(rate, seconds) as shop:
                watch = ShopMonitor(shop, archive, stream)
                self.kill_a_broker(watch, rate, seconds)
                self.close_shop(watch)
        self.print_job_results(archive, stream)
        self.replay_and_report()
        return self.check()

    def show_cluster(self) -> None:
        self._console.heading("Brokers")
        cluster = self._cluster
        self._console.print_fact(f"nsqlookupd  http://{cluster.nsqlookupd.http_address}")
        for nsqd in cluster.nsqds:
            self._console.print_fact(
                f"nsqd        {nsqd.tcp_address} (TCP)  http://{nsqd.http_address}"
            )
        self._console.print_fact(f"nsqadmin    {cluster.nsqadmin.url}  <- open in a browser")
        for topic in (*TOPICS, *RESULTS):
            cluster.create_topic(topic)
        (self._folder / "demo.json").write_bytes(msgspec.json.encode(self.paths))

    def archive_command(self) -> Sequence[str]:
        flags = ("--lake=lake", f"--schema={LAKE_SCHEMA}", "--trigger=5s")
        return ("archive", *TOPICS, *flags, self._lookupd)

    def wait_for_spark(self, archive: Job, stream: Job) -> None:
        """Wait until each query has created its channel."""
        self._console.heading("Spark")
        self._console.print_fact("penstock archive  writes every event to a lake of Parquet files")
        self._console.print_fact(
            "penstock stream   computes revenue by window of 10 s, and joins orders with payments"
        )

        def missing() -> int:
            archive.check_runs()
            stream.check_runs()
            return sum(self._cluster.depth(*place) is None for place in QUERY_CHANNELS)

        self._console.wait(
            lambda: not missing(),
            "starting both",
            seconds=TIMEOUT_SECONDS,
            progress=lambda: f"{missing()} of {len(QUERY_CHANNELS)} channels missing",
        )
        self._console.print_fact("all queries are running")

    @contextmanager
    def open_shop(self, rate: float, seconds: float) -> Iterator[GeneratorProcess]:
        self._console.heading(
            f"The shop is open: {rate:,.0f} events per second for {seconds:.0f} s"
        )
        tcp_addresses = [nsqd.tcp_address for nsqd in self._cluster.nsqds]
        shop = GeneratorProcess(self.paths.ledger, tcp_addresses, rate=rate, seconds=seconds)
        try:
            yield shop
        finally:
            shop.end()

    def kill_a_broker(self, watch: "ShopMonitor", rate: float, seconds: float) -> None:
        """Kill one nsqd under load, and restart it; the other one takes over meanwhile."""
        victim = self._cluster.nsqds[1]

        def wait_for(count: float) -> None:
            self._console.wait(
                lambda: watch.acknowledged() >= count or watch.step() != "open",
                "events",
                seconds=TIMEOUT_SECONDS,
                progress=lambda: self._progress(watch),
            )

        wait_for(rate * seconds / 3)
        victim.kill()
        killed_at = watch.acknowledged()
        self._console.print_fact(f"kill -9 of one nsqd after {killed_at:,} events", "bold red")
        wait_for(killed_at + rate * min(seconds / 10, 3))
        began = time.monotonic()
        victim.start()
        took = time.monotonic() - began
        self._console.print_fact(f"it is up again, {took:.1f} s after its restart", "bold green")
        self._console.wait(
            lambda: watch.step() != "open",
            "events",
            seconds=TIMEOUT_SECONDS,
            progress=lambda: self._progress(watch),
        )
        self._console.print_fact(f"{watch.acknowledged():,} events acknowledged")

    def close_shop(self, watch: "ShopMonitor") -> None:
        """Publish the order that closes all windows, after Spark has read the other events."""
        self._console.heading("The shop is closed; Spark processes the rest")
        self._console.wait(
            lambda: watch.step() and not self._lagging_channels(),
            "queries with a lag:",
            seconds=TIMEOUT_SECONDS,
            progress=self._lag_summary,
        )
        watch.shop.close_shop()
        self._console.wait(
            lambda: watch.step() == "done", "the last order", seconds=TIMEOUT_SECONDS
        )
        ledger = read_ledger(self.paths.ledger)
        try:
            self._console.wait(
                lambda: watch.step() and self._is_complete(ledger),
                "the last windows",
                seconds=TIMEOUT_SECONDS,
                progress=lambda: self._progress(watch),
            )
        except WaitTimeoutError as failure:  # the checks show what is missing
            self._console.print_fact(str(failure), "bold red")

    def print_job_results(self, *jobs: Job) -> None:
        for job in jobs:
            for line in job.results():
                self._console.print_fact(f"{job.name:8} {line}")

    def replay_and_report(self) -> None:
        self._console.heading("Replay of the last hour of orders from the lake, and a report")
        replay_flags = ("--lake=lake", "--from=1h", "--yes", self._lookupd)
        report_flags = ("--lake=lake", "--event-time=value.ts", f"--out={self.report}")
        with running_jobs(self._folder) as start:
            replay = start("replay", ("replay", "orders", "orders.again", *replay_flags))
            report = start("report", ("report", *report_flags))
            self._console.wait(
                lambda: replay.has_ended() and report.has_ended(),
                "penstock replay, penstock report",
                seconds=TIMEOUT_SECONDS,
            )
        self.print_job_results(replay)

    def check(self) -> bool:
        self._console.heading("Checks")
        return check(self._console, self.paths)

    def print_verdict(self, *, is_right: bool, is_kept: bool) -> None:
        verdict = f"all equal, after {self._console.clock}" if is_right else "some checks failed"
        self._console.print_fact(f"\n  {verdict}", "bold green" if is_right else "bold red")
        if is_kept:
            self._console.print_fact(f"nsqadmin   {self._cluster.nsqadmin.url}")
            self._console.print_fact(f"report     {self.report}")
            self._console.print_fact(f"files      {self._folder}  (not deleted)")
            self._console.print_fact(
                f"check      .venv/bin/python -m examples.shop.check {self._folder}"
            )
            self._console.print_fact("Ctrl-C stops everything")
        else:
            REPORT.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.report, REPORT)
            self._console.print_fact(f"report     {REPORT}")
            self._console.print_fact("nsqadmin   make demo KEEP=1 keeps it running")

    # Progress.

    def _progress(self, watch: "ShopMonitor") -> str:
        return f"{watch.acknowledged():,} acknowledged, {self._archived():,} archived"

    def _archived(self) -> int:
        return sum(Commits.load_state(self._lake.topic(topic)).messages for topic in TOPICS)

    def _lagging_channels(self) -> dict[tuple[str, str], int | None]:
        """Channels with unread messages, and their depth."""
        depths = {place: self._cluster.depth(*place) for place in QUERY_CHANNELS}
        return {place: depth for place, depth in depths.items() if depth != 0}

    def _lag_summary(self) -> str:
        depths = self._lagging_channels().values()
        return f"{len(depths)}, {sum(depth or 0 for depth in depths):,} messages"

    def _is_complete(self, ledger: Ledger) -> bool:
        """Whether the counts are complete; the contents are checked later."""
        is_archived = all(
            Commits.load_state(self._lake.topic(topic)).next_seqs == self._cluster.next_seqs(topic)
            for topic in TOPICS
        )
        return (
            is_archived
            and len(revenue(self.paths.nsqds)) >= len(ledger.revenue())
            and len(paid_orders(self.paths.nsqds)) >= len(ledger.paid())
        )


def check(console: DemoConsole, paths: DemoPaths) -> bool:
    """Compare the results with the ledger, and print a summary."""
    ledger, found = read_ledger(paths.ledger), read_results(paths)
    results = checks(ledger, found)
    console.summary(results, notes(ledger, found))
    return not any(result.fault for result in results)


class ShopMonitor:
    """Progress of the shop; also checks that the jobs are running."""

    def __init__(self, shop: GeneratorProcess, *jobs: Job) -> None:
        self.shop = shop
        self._jobs = jobs

    def acknowledged(self) -> int:
        return self.shop.status.acknowledged

    def step(self) -> str:
        """Current step of the shop. Raises JobError if it, or a job, has ended."""
        self.shop.check_runs()
        for job in self._jobs:
            job.check_runs()
        return self.shop.status.step


def main() -> int:
    parser = argparse.ArgumentParser(description="Demo: a shop, two brokers, Spark, a kill -9.")
    parser.add_argument("--rate", type=float, default=EVENTS_PER_SECOND, help="events per second")
    parser.add_argument("--seconds", type=float, default=OPEN_SECONDS, help="duration of the load")
    parser.add_argument("--keep", action="store_true", help="keep everything running")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    console = DemoConsole(Console(highlight=False, soft_wrap=True))
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    code = 1
    try:
        with running_cluster(folder) as cluster:
            demo = Demo(console, cluster, folder)
            code = 0 if demo.run(rate=args.rate, seconds=args.seconds) else 1
            demo.print_verdict(is_right=code == 0, is_kept=args.keep)
            if args.keep:
                signal.pause()
    except KeyboardInterrupt:
        console.print_fact("stopped")
    except (Error, JobError, WaitTimeoutError, DaemonStartError, AssertionError) as failure:
        console.print_fact(str(failure), "bold red")
        return 1
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Ignore further signals, so that the clean-up is not interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
