"""Reports have the same values as a computation in plain Python."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.common.errors import ConfigError, LakeError
from penstock.pipelines.lake import Lake
from penstock.pipelines.report import (
    LakeReport,
    ReportConfig,
    check_config,
    choose_step,
    make_report,
)

EIGHT = datetime(2026, 11, 15, 8, tzinfo=UTC)
COUNT = 200

VALUE = pa.struct([("ts", pa.timestamp("us", tz="UTC")), ("total", pa.float64())])
COLUMNS = {
    "node": pa.int32(),
    "seq": pa.int64(),
    "id": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.int64(),
    "body": pa.binary(),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake like those of `penstock archive`: ten orders per second for 10 s, a gap of a minute,
    and 10 s of orders again. The last is dated in the future, and ten were rejected."""
    path = tmp_path_factory.mktemp("report") / "lake"
    folder = Lake.create(path).topic("orders")
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("ts", "timestamp"), ("total", "double"))
    ]
    folder.set_body_schema({"type": "struct", "fields": fields})
    folder.committed.write_text(json.dumps({"next_seqs": {"0": COUNT, "1": COUNT}}))
    rows = [message(number) for number in range(COUNT)]
    write(folder.messages, rows[:-10], {**COLUMNS, "value": VALUE})
    write(folder.rejected, rows[-10:], {**COLUMNS, "reason": pa.string()})
    return path


def message(number: int) -> dict[str, Any]:
    seconds = number / 10 + (60 if number >= COUNT / 2 else 0)
    published = EIGHT + timedelta(seconds=seconds)
    happened = published - timedelta(seconds=-5 if number == COUNT - 11 else number % 10)
    return {
        "node": number % 2,
        "seq": number,
        "id": f"{number:016x}",
        "timestamp": published,
        "timestamp_ns": round(published.timestamp() * 1e3) * 10**6,
        "body": b"x" * (number + 1),
        "value": {"ts": happened, "total": 1.0},
        "reason": "it is no JSON object",
    }


def write(folder: Path, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    hour = folder / "date=2026-11-15" / "hour=08"
    hour.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), hour / "part-0.parquet")


def report_of(spark: SparkSession, lake: Path, **options: Any) -> LakeReport:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    config = ReportConfig(lake=Lake.open(lake), **options)
    check_config(config)
    return make_report(spark, config)


def test_counts_sizes_delays_and_longest_gap(spark: SparkSession, lake: Path) -> None:
    report = report_of(spark, lake, event_time="value.ts", step_seconds=10)

    [orders] = report.topics
    assert {0: 100, 1: 100} == orders.by_node
    assert (200, 10, sum(range(201))) == (
        orders.total.messages,
        orders.total.rejected,
        orders.total.size_bytes,
    )
    assert (100, 190, 198, 200) == orders.total.sizes
    assert (4.0, 9.0, 9.0, 9.0, 1) == orders.total.delays
    assert pytest.approx(60.1) == orders.longest_gap_seconds
    assert [100, 0, 0, 0, 0, 0, 0, 100] == [moment.messages for moment in orders.intervals]
    assert [0] * 7 + [10] == [moment.rejected for moment in orders.intervals]
    assert orders.intervals[1].sizes is None
    assert {0: 50, 1: 50} == orders.intervals[0].by_node


def test_a_time_range_limits_the_report(spark: SparkSession, lake: Path) -> None:
    report = report_of(spark, lake, end="2026-11-15T08:00:02Z")

    [orders] = report.topics
    assert (20, 0, None) == (orders.total.messages, orders.total.rejected, orders.total.delays)
    assert 1 == report.step_seconds


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"topics": ("ordres",)}, LakeError, "topic ordres is not in .*; topics: orders"),
        ({"start": "2026-11-16T00:00:00Z"}, LakeError, "has no messages from 2026-11-16T00:00:00Z"),
        ({"start": "yesterday"}, ConfigError, "yesterday"),
        ({"event_time": "value.total"}, ConfigError, "value.total must be a timestamp, not double"),
        ({"event_time": "value.when"}, ConfigError, "orders: value.when: No such struct field"),
    ],
)
def test_invalid_options_are_rejected(
    spark: SparkSession,
    lake: Path,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words) as raised:
        report_of(spark, lake, **options)

    assert "\n" not in str(raised.value)


def test_the_default_interval_depends_on_the_time_range() -> None:
    assert [1, 1, 2, 60, 86_400] == [choose_step(s) for s in (1, 120, 121, 7200, 100 * 86_400)]
