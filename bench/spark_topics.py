"""A Spark query over many topics: `python -m bench.spark_topics [--topics 1000]`.

Two nsqds have all topics, with one message each; the query finds them through nsqlookupd. Measured:
the time until the query has read the first rows and all rows; then, while it is idle, the requests
per second and the CPU of each nsqd and of the source's Python process on the driver; then the time
for one new row in each of 100 topics.

The goals are those of the last column. The load of the machine is printed, because it decides.
"""

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql.streaming.query import StreamingQuery

from bench.procfs import cpu_seconds
from bench.spark_drain import session
from penstock.client.blocking import Producer
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd

__all__ = ["main"]

SOURCE_RUNNER = b"python_streaming_source_runner"
CHANGED_TOPICS = 100
SETTLE_SECONDS = 15.0
DEADLINE_SECONDS = 600.0


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    args = parser.parse_args()
    topics = [f"topic-{number:04}" for number in range(args.topics)]
    with TemporaryDirectory() as folder, run_nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with run_nsqd(*flags) as one, run_nsqd(*flags) as two:
            for nsqd in (one, two):
                publish(nsqd, topics)
            measure(lookupd, [one, two], topics, Path(folder), args.idle_seconds)


def measure(
    lookupd: NsqlookupdProcess,
    nsqds: list[NsqdProcess],
    topics: list[str],
    folder: Path,
    idle_seconds: float,
) -> None:
    spark = session()
    frame = (
        spark.readStream.format("nsq")
        .option("lookupd", lookupd.http_address)
        .option("topicPattern", "topic-.*")
        .option("startingOffsets", "earliest")
        .load()
    )
    show("load of the machine", f"{os.getloadavg()[0]:.1f}", "")
    began = time.monotonic()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    counter = RowCounter(query)
    counter.wait_for(1)
    show("first rows", f"{time.monotonic() - began:.1f} s", "10 s")
    counter.wait_for(len(nsqds) * len(topics))
    show(f"{counter.rows} rows", f"{time.monotonic() - began:.1f} s", "")
    print(f"  batches: {batch_times(query)}", flush=True)

    time.sleep(SETTLE_SECONDS)
    idle(nsqds, idle_seconds)

    for warm_up in (True, False):
        began, rows = time.monotonic(), counter.rows
        publish(nsqds[0], topics[:CHANGED_TOPICS])
        counter.wait_for(rows + CHANGED_TOPICS)
        label = f"{CHANGED_TOPICS} rows in {CHANGED_TOPICS} topics"
        label += ", first time" * warm_up
        show(label, f"{time.monotonic() - began:.2f} s", "2 s")
        print(f"  batches: {batch_times(query)}", flush=True)
    show("load of the machine", f"{os.getloadavg()[0]:.1f}", "")
    query.stop()
    spark.stop()


def batch_times(query: StreamingQuery) -> str:
    """The steps of the latest batches that had rows, in milliseconds."""
    reports = [each for each in query.recentProgress[-5:] if each.numInputRows]
    return "; ".join(
        f"{each.numInputRows} rows: "
        + ", ".join(f"{step} {ms}" for step, ms in sorted(each.durationMs.items()) if ms > 10)
        for each in reports
    )


def idle(nsqds: list[NsqdProcess], seconds: float) -> None:
    """Prints requests and CPU per second while nothing is published."""
    source = source_process()
    processes = {"CPU of the source's Python process": source}
    processes |= {f"CPU of nsqd {number}": each.pid for number, each in enumerate(nsqds, 1)}
    requests = [http_requests(each) for each in nsqds]
    used = {name: cpu_seconds(pid) for name, pid in processes.items()}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    for number, (nsqd, before) in enumerate(zip(nsqds, requests, strict=True), 1):
        # One request is that for the metrics.
        rate = (http_requests(nsqd) - before - 1) / elapsed
        show(f"idle: requests/s to nsqd {number}", f"{rate:.2f}", "2")
    for name, pid in processes.items():
        show(f"idle: {name}", f"{(cpu_seconds(pid) - used[name]) / elapsed:.1%}", "2 %")


def publish(nsqd: NsqdProcess, topics: list[str]) -> None:
    """One message to each topic."""
    with Producer(nsqd.tcp_address) as producer:
        for topic in topics:
            producer.publish(topic, b"x" * 100)


def http_requests(nsqd: NsqdProcess) -> int:
    lines = nsqd.http("GET", "/metrics").body.decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(REQUESTS))


REQUESTS = "nsqd_http_requests_total"


def source_process() -> int:
    """The process that runs the source for the driver."""
    found = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if SOURCE_RUNNER in read(folder / "cmdline") and is_descendant(int(folder.name))
    ]
    # A daemon forks the process that does the work.
    return max(found, key=cpu_seconds_of_itself)


def is_descendant(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = int(read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[1] or 0)
    return pid == os.getpid()


def cpu_seconds_of_itself(pid: int) -> int:
    fields = read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


class RowCounter:
    """Counts the rows of a query from Spark's progress reports."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._batches: dict[int, int] = {}

    @property
    def rows(self) -> int:
        for report in self._query.recentProgress:
            self._batches[report.batchId] = max(
                report.numInputRows, self._batches.get(report.batchId, 0)
            )
        return sum(self._batches.values())

    def wait_for(self, rows: int) -> None:
        """Raises the query's exception, and TimeoutError."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.rows < rows:
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)


def show(name: str, value: str, goal: str) -> None:
    print(f"{name:50} {value:>10} {f'(goal: {goal})' if goal else ''}", flush=True)


if __name__ == "__main__":
    main()
