"""A checkpointed query reads a replicated node across takeovers: every message once."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Archive, history, stream
from tests.spark.test_kills import count, driver, nodes_known, publishing

from penstock.client import ClientConfig
from penstock.client.blocking import Producer
from penstock.testing.etcd import has_etcd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.replicated import FAST_TAKEOVER, ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]

CONFIG = ClientConfig(publish_timeout=120.0)


def fail_over(node: ReplicatedNode, commits: Path) -> None:
    """Kill the leader under a query, wait until the query has read from the next one, and start
    the killed member again."""
    before = count(commits)
    wait_until(lambda: count(commits) > before, "a batch", seconds=180)
    leader = node.wait_for_leader()
    node.kill(leader)
    node.wait_for_leader(not_=leader)
    before = count(commits)
    wait_until(lambda: count(commits) >= before + 3, "batches of the new leader", seconds=180)
    node.start(leader)
    node.wait_in_sync(3)


def test_every_message_is_archived_once(spark: SparkSession, tmp_path: Path) -> None:
    archive = Archive(spark, tmp_path)
    with run_nsqlookupd() as lookupd:
        known = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with run_replicated_node(flags=[*FAST_TAKEOVER, known, "--retention-time=1h"]) as node:
            wait_until(lambda: nodes_known(lookupd) == 1, "the leader to be known")
            address = f"http://{lookupd.http_address}"
            with publishing(lambda: Producer(lookupd=address, config=CONFIG)) as published:
                for _ in range(2):
                    with driver(lookupd, tmp_path, "history"):
                        fail_over(node, tmp_path / "checkpoint" / "commits")
            frame = stream(spark, lookupd=lookupd.http_address, topic="orders", channel="spark")
            archive.take_what_is_there(frame)
            stored = sorted(message["id"] for message in history(node.led_by, "orders"))

    rows = archive.rows().select("log", "seq", "id").collect()
    assert len({(row.log, row.seq) for row in rows}) == len(rows)
    assert stored == sorted(row.id for row in rows)
    assert 1 == len({row.log for row in rows})
    assert published
    assert set(published) <= set(archive.bodies())
