"""A real cluster of Spark's: a master and two workers, whose executors are other processes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.spark.tables import publish

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # six Javas start

SPARK_HOME = Path(pyspark.__file__).parent
ON_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

PROGRAM = """
import os
import sys
from pyspark.sql import SparkSession

master, nsqd, folder = sys.argv[1:]
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


@contextmanager
def spark_daemon(folder: Path, name: str, *args: str) -> Iterator[Path]:
    """One of Spark's own daemons, and its log."""
    log = folder / f"{len(list(folder.iterdir()))}.log"
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *args],
            stdout=out,
            stderr=out,
            env=environment,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(120)


def said(log: Path, pattern: str) -> str:
    """What a log says after a while."""
    wait_until(lambda: re.search(pattern, log.read_text()), f"{pattern} in the log", seconds=120)
    found: list[str] = re.findall(pattern, log.read_text())
    return found[0]


def test_executors_of_other_processes_read_the_topic(nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish(nsqd, "orders", map(str, range(1000)))
    logs = tmp_path / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        log = stack.enter_context(spark_daemon(logs, "master.Master", *ON_LOOPBACK))
        master = said(log, r"spark://127\.0\.0\.1:\d+")
        for _ in range(2):
            worker = (*ON_LOOPBACK, "--cores", "1", "--memory", "600m", master)
            log = stack.enter_context(spark_daemon(logs, "worker.Worker", *worker))
            said(log, "Successfully registered with master")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, nsqd.http_address, str(tmp_path)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            timeout=200,
            check=False,
        )

    assert "result 1000 1000 499500 executors 2" in done.stdout, done.stderr
