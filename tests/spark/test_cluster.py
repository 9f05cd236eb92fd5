"""A real Spark cluster: a master and two workers, with executors in other processes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.crash.disks import UNMOUNT_COPIES
from tests.spark.tables import publish

from penstock.pipelines.lake import Lake
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # six Java processes start

SPARK_HOME = Path(pyspark.__file__).parent
ON_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

SESSION = """
import os
import sys
from pyspark.sql import SparkSession

master, nsqd, *folders = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.extraJavaOptions", os.environ["SPARK_DAEMON_JAVA_OPTS"])
    .config("spark.scheduler.minRegisteredResourcesRatio", "1")
    .getOrCreate()
)
"""

READ = """
folder = folders[0]
options = dict(nsqd=nsqd, topic="orders", minPartitions="4", startingOffsets="earliest")
orders = spark.readStream.format("nsq").options(**options).load()
query = (
    orders.writeStream.format("parquet")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start(folder + "/table")
)
query.awaitTermination()
spark.read.parquet(folder + "/table").createOrReplaceTempView("orders")
row = spark.sql(
    "select count(*), count(distinct seq), sum(cast(cast(body as string) as int)) from orders"
).first()
status = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print("result", *row, "executors", len(status) - 1)
"""


ARCHIVE = """
from penstock.cli.penstock import main

for lake in folders:
    channel = os.path.basename(lake)
    words = ("archive", "orders", "--lake", lake, "--once", "--channel", channel)
    print(channel, main([*words, "--nsqd-http-address", nsqd]), flush=True)
"""


@contextmanager
def spark_daemon(
    folder: Path, name: str, *args: str, private: Sequence[Path] = ()
) -> Iterator[Path]:
    """Run a Spark daemon and yield its log. It has its own, empty version of the
    `private` folders.
    """
    log = folder / f"{len(list(folder.iterdir()))}.log"
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    mounts = UNMOUNT_COPIES + "".join(f"mount -t tmpfs none '{each}' && " for each in private)
    apart = ("unshare", "-m", "sh", "-c", mounts + 'exec "$@"', "sh") if private else ()
    program = str(SPARK_HOME / "bin" / "spark-class")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*apart, program, f"org.apache.spark.deploy.{name}", *args],
            stdout=out,
            stderr=out,
            env=environment,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(120)


def wait_for_line(log: Path, pattern: str) -> str:
    """Wait until the log contains the pattern."""
    wait_until(lambda: re.search(pattern, log.read_text()), f"{pattern} in the log", seconds=120)
    found: list[str] = re.findall(pattern, log.read_text())
    return found[0]


@contextmanager
def cluster(folder: Path, *private: Sequence[Path]) -> Iterator[str]:
    """Start a master, and a worker for each list of `private` folders. Yields the master's URL."""
    folder.mkdir()
    with ExitStack() as stack:
        log = stack.enter_context(spark_daemon(folder, "master.Master", *ON_LOOPBACK))
        master = wait_for_line(log, r"spark://127\.0\.0\.1:\d+")
        for each in private:
            worker = ("worker.Worker", *ON_LOOPBACK, "--cores", "1", "--memory", "600m", master)
            log = stack.enter_context(spark_daemon(folder, *worker, private=each))
            wait_for_line(log, "Successfully registered with master")
        yield master


def run_driver(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SESSION + program, *args],
        capture_output=True,
        text=True,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        timeout=400,
        check=False,
    )


def test_executors_in_other_processes_read_the_topic(nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish(nsqd, "orders", map(str, range(1000)))
    with cluster(tmp_path / "logs", (), ()) as master:
        done = run_driver(READ, master, nsqd.http_address, str(tmp_path))

    assert "result 1000 1000 499500 executors 2" in done.stdout, done.stderr


def can_mount() -> bool:
    """Whether processes can have private mounts: requires root, and fails in some containers."""
    mount = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(mount, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_nothing_is_committed_if_a_worker_does_not_share_the_lake(
    nsqd: NsqdProcess, tmp_path: Path
) -> None:
    publish(nsqd, "orders", map(str, range(1000)))
    lakes = [tmp_path / name for name in ("no-worker", "one-worker", "both-workers")]
    for lake in lakes:
        lake.mkdir()
    neither, one, both = lakes

    with cluster(tmp_path / "logs", (neither, one), (neither,)) as master:
        done = run_driver(ARCHIVE, master, nsqd.http_address, *map(str, lakes))

    assert ["no-worker 1", "one-worker 1"] == done.stdout.splitlines()[:2], done.stderr
    assert f"orders: 1,000 messages archived; {both} has 1,000\nboth-workers 0" in done.stdout
    assert f"wrote 1,000 messages, but 0 of them are in {neither}" in done.stderr
    assert f"wrote 1,000 messages, but 500 of them are in {one}" in done.stderr
    for lake, depth in ((neither, 1000), (one, 1000), (both, 0)):
        assert Lake(lake).topic("orders").committed.exists() == (depth == 0)
        assert depth == nsqd.stats("orders", lake.name)["depth"]
