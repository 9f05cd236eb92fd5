"""The demo without its stream, in small: a shop, two brokers, one of them killed, and a lake.

All of it is `make demo`, which takes too long for here.
"""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from examples.shop.checks import Check, checks
from examples.shop.cluster import running_cluster
from examples.shop.demo import LAKE_SCHEMA, RESULTS
from examples.shop.events import TOPICS
from examples.shop.jobs import GeneratorProcess
from examples.shop.ledger import read_ledger
from examples.shop.results import DemoPaths, read_results
from pyspark.sql import SparkSession

from penstock.pipelines.archive import ArchiveConfig, archive, check_config
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.lake import Lake
from penstock.pipelines.running import Stop
from penstock.testing.waiting import wait_until

RATE, SECONDS = 1000, 3


def lake_faults(paths: DemoPaths) -> list[Check]:
    results = checks(read_ledger(paths.ledger), read_results(paths))
    of_the_lake = re.compile(".* archived|broken .* rejected by the archive")
    return [check for check in results if check.fault and of_the_lake.fullmatch(check.what)]


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_acknowledged_events_are_in_the_lake_and_a_truncated_file_is_noticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running_cluster(tmp_path) as cluster:
        for topic in (*TOPICS, *RESULTS):
            cluster.create_topic(topic)
        paths = DemoPaths(str(tmp_path), cluster.http_addresses)
        tcp_addresses = [nsqd.tcp_address for nsqd in cluster.nsqds]
        shop = GeneratorProcess(paths.ledger, tcp_addresses, rate=RATE, seconds=SECONDS)
        try:
            wait_until(lambda: shop.status.acknowledged > RATE, "a third of it", seconds=60)
            cluster.nsqds[1].kill()
            cluster.nsqds[1].start()
            wait_until(lambda: shop.status.step == "closed", "the end of the day", seconds=120)
            shop.close_shop()
            wait_until(lambda: shop.status.step == "done", "the last order", seconds=60)
        finally:
            shop.end()

        spark.conf.set("spark.sql.session.timeZone", "UTC")
        config = ArchiveConfig(
            topics=TOPICS,
            lake=str(paths.lake),
            brokers=Brokers(tuple(cluster.http_addresses)),
            once=True,
            schema=LAKE_SCHEMA,
        )
        done = archive(spark, config, check_config(config), Stop())
        assert sum(each.messages for each in done) >= shop.status.acknowledged > RATE * SECONDS / 2
        assert [] == lake_faults(paths)

        file = Lake.open(paths.lake).topic("payments").files()[0]
        rows = pq.ParquetFile(file).read()
        pq.write_table(rows.slice(rows.num_rows // 2), file)
        (fault,) = lake_faults(paths)
        assert "payments archived" == fault.what
        assert " missing, such as p-" in fault.fault
