"""Streaming SQL from topics to topics and files, with a real nsqd and a real Spark."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import history, publish

from penstock.cli.penstock import main
from penstock.common.errors import ConfigError, Error, PipelineError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.progress import QueryMetrics
from penstock.pipelines.running import Stop
from penstock.pipelines.stream import (
    StreamConfig,
    check_config,
    explain_stream,
    locked,
    query_samples,
    run_stream,
    schema_violations,
    survey_sources,
)
from penstock.pipelines.stream_definition import parse_definition
from penstock.testing.nsqd import NsqdProcess

ORDERS = {
    "schema": "id STRING NOT NULL, amount DOUBLE, ts TIMESTAMP",
    "watermark": "ts, 10 seconds",
    "rejects": "orders.rejected",
}
PAYMENTS = {"schema": "id STRING, paid DOUBLE, ts TIMESTAMP", "watermark": "ts, 10 seconds"}
REVENUE = """
SELECT date_format(window.start, 'mm:ss') AS at, sum(amount) AS amount
FROM orders GROUP BY window(ts, '10 seconds')
"""
PAID = """
SELECT orders.id, amount, paid, orders.message_id IS NOT NULL AS has_id FROM orders JOIN payments
ON orders.id = payments.id AND payments.ts BETWEEN orders.ts AND orders.ts + INTERVAL 20 SECONDS
"""


def stream_config(nsqd: NsqdProcess, folder: Path, **changes: Any) -> StreamConfig:
    definition = parse_definition(
        {
            "name": "shop",
            "checkpoint": str(folder / "checkpoint"),
            "sources": {"orders": ORDERS, "payments": PAYMENTS},
            "queries": {"revenue": REVENUE, "paid": PAID},
            "sinks": {"revenue": {"topic": "revenue"}, "paid": {"topic": "orders.paid"}},
            **changes,
        }
    )
    return StreamConfig(definition=definition, brokers=Brokers((nsqd.http_address,)), once=True)


def run(spark: SparkSession, config: StreamConfig) -> dict[str, QueryMetrics]:
    check_config(config, writes=True)
    done = run_stream(spark, config, survey_sources(config), Stop())
    return {figures.name: figures for figures in done}


def event(seconds: int, **fields: object) -> str:
    minutes, rest = divmod(seconds, 60)
    return json.dumps({**fields, "ts": f"2026-01-01T00:{minutes:02}:{rest:02}Z"})


def bodies(nsqd: NsqdProcess, topic: str) -> list[Any]:
    found = (message["body"] for message in history(nsqd, topic))
    return sorted((json.loads(body) for body in found), key=str)


def publish_shop(nsqd: NsqdProcess, seconds: Iterable[int]) -> None:
    """Publish an order every second, and its payment five seconds later; every tenth is unpaid."""
    publish(nsqd, "orders", [event(at, id=f"o{at}", amount=at) for at in seconds])
    paid = [event(at + 5, id=f"o{at}", paid=at) for at in seconds if at % 10]
    publish(nsqd, "payments", paid)


def test_windows_and_joins_continue_from_the_checkpoint(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path
) -> None:
    """Half a minute is published and read, and then the rest: each window, and each pair, is
    published once. Broken messages are rejected; late ones are dropped."""
    config = stream_config(nsqd, tmp_path)
    publish_shop(nsqd, range(30))
    broken = ["no JSON", '{"id": "x", "amount": "much"}', '{"amount": 1}']
    publish(nsqd, "orders", broken)
    first = run(spark, config)
    publish_shop(nsqd, range(30, 60))
    publish(nsqd, "orders", [event(3, id="late", amount=1000), event(600, id="last", amount=0)])
    second = run(spark, config)

    windows = [{"at": f"00:{at}0", "amount": sum(range(at * 10, at * 10 + 10))} for at in range(6)]
    assert windows == bodies(nsqd, "revenue")
    pairs = [
        {"id": f"o{at}", "amount": at, "paid": at, "has_id": True} for at in range(60) if at % 10
    ]
    assert sorted(pairs, key=str) == bodies(nsqd, "orders.paid")
    assert sorted(broken) == sorted(each["body"] for each in history(nsqd, "orders.rejected"))

    assert (33, 3) == (first["revenue"].rows, first["revenue"].counters["rejected"])
    assert 32 == second["revenue"].rows
    assert 6 == first["revenue"].counters["rows out"] + second["revenue"].counters["rows out"]
    assert 3 == first["rejects.orders"].counters["rows out"]
    channels = nsqd.stats("orders")["channels"]
    assert {"shop.revenue": 0, "shop.paid": 0, "shop.rejects.orders": 0} == {
        each["channel_name"]: each["depth"] for each in channels
    }

    # The state of one query cannot be used for another.
    changed = stream_config(
        nsqd,
        tmp_path,
        queries={"revenue": REVENUE.replace("FROM", ", count(*) AS n FROM"), "paid": PAID},
    )
    publish_shop(nsqd, range(610, 620))
    with pytest.raises(PipelineError, match=r"revenue: .*checkpoint"):
        run(spark, changed)


@pytest.mark.usefixtures("spark")
def test_files_are_partitioned(
    nsqd: NsqdProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defined by flags only, for a topic without a schema."""
    publish(nsqd, "words", ["one", "two", "three"])
    folder = tmp_path / "words"
    command = [
        *("stream", "--nsqd-http-address", nsqd.http_address, "--source", "words=words"),
        *("--sql", "SELECT length(body) AS length, string(body) AS word FROM words"),
        *("--to-files", str(folder), "--format", "json", "--partition-by", "length"),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--once"),
    ]

    assert 0 == main(command)

    assert "out: 3 messages read, 3 rows out\n" == capsys.readouterr().out
    words = {file.parent.name: file.read_text() for file in folder.glob("length=*/*.json")}
    assert {"length=3", "length=5"} == set(words)
    assert '{"word":"three"}\n' == words["length=5"]


def test_a_preview_writes_nothing(spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish_shop(nsqd, range(20))
    publish(nsqd, "orders", ["no JSON"])
    config = stream_config(nsqd, tmp_path)

    revenue, paid = query_samples(spark, config, 3)
    assert ["at", "amount"] == revenue.columns
    assert [("00:00", 45.0), ("00:10", 145.0)] == sorted(map(tuple, revenue.rows))
    assert 3 == len(paid.rows)
    (violation,) = schema_violations(spark, config)
    assert ("orders", 1, 21, b"no JSON") == (
        *(violation.source, violation.count, violation.among),
        violation.example,
    )
    text = explain_stream(spark, config)
    assert "orders: topic orders, from earliest; late rows accepted for 10 seconds by ts" in text
    assert "at string, amount double" in text
    assert "StateStoreSave" in text

    assert ["orders", "payments"] == nsqd_topics(nsqd)
    assert [] == list(tmp_path.iterdir())


def nsqd_topics(nsqd: NsqdProcess) -> list[str]:
    topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
    return sorted(topic["topic_name"] for topic in topics)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"queries": {"revenue": "SELECT amount\nFROM orders WHERE amuont > 1", "paid": PAID}},
            r"queries.revenue: .*`amuont` cannot be resolved.*`amount`.* \(line 2, column 19\)$",
        ),
        (
            {"queries": {"revenue": "DROP TABLE orders", "paid": PAID}},
            r"queries.revenue: Syntax error at or near 'DROP'. \(line 1, column 1\)$",
        ),
        (
            {"sources": {"orders": {"schema": "id STRONG"}, "payments": PAYMENTS}},
            'sources.orders: .*invalid schema .*: Unsupported data type "STRONG"',
        ),
        (
            {"sources": {"orders": {**ORDERS, "watermark": "id, 1m"}, "payments": PAYMENTS}},
            "sources.orders: watermark: id must be a timestamp, not string",
        ),
        (
            {"queries": {"revenue": "SELECT id, count(*) FROM orders GROUP BY id", "paid": PAID}},
            "sinks.revenue: .*append.*not supported for streaming aggregations without watermark",
        ),
        (
            {"sinks": {"paid": {"path": "x", "partition_by": "day"}}},
            "sinks.paid: partition_by: no column day; columns: id, amount, paid, has_id",
        ),
    ],
)
def test_errors_of_spark_are_one_line(
    spark: SparkSession, nsqd: NsqdProcess, tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    publish_shop(nsqd, range(1))
    config = stream_config(nsqd, tmp_path, **changes)

    with pytest.raises(Error, match=error) as caught:
        run_stream(spark, config, survey_sources(config), Stop())

    assert "\n" not in str(caught.value)
    assert [] == list(tmp_path.iterdir())


def test_checks_without_spark(nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish_shop(nsqd, range(1))
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="topic ordres does not exist; topics: orders, payments"):
        survey_sources(
            stream_config(nsqd, tmp_path, sources={"ordres": {}, "orders": {}, "payments": {}})
        )
    with pytest.raises(ConfigError, match=r"cannot write to .*: .*file is not a folder"):
        check_config(
            stream_config(nsqd, tmp_path, checkpoint=str(tmp_path / "file" / "x")), writes=True
        )
    wrong = {"orders": {**ORDERS, "options": {"failOnDataLoos": True}}, "payments": PAYMENTS}
    with pytest.raises(ConfigError, match="unknown option 'failondataloos'"):
        check_config(stream_config(nsqd, tmp_path, sources=wrong), writes=True)
    with pytest.raises(ConfigError, match="no sink"):
        check_config(stream_config(nsqd, tmp_path, sinks={}), writes=True)


def test_a_source_may_be_a_topic_that_a_sink_creates(nsqd: NsqdProcess, tmp_path: Path) -> None:
    publish_shop(nsqd, range(1))
    config = stream_config(
        nsqd,
        tmp_path,
        sources={"orders": ORDERS, "payments": PAYMENTS, "revenue_": {"topic": "revenue"}},
    )

    assert {"orders", "payments"} == {key.topic for key in survey_sources(config).logs}


def test_a_checkpoint_is_locked(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match="another process uses the checkpoint")
    with locked(str(tmp_path)), refused, locked(str(tmp_path)):
        pass
