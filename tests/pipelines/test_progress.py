"""Metrics from Spark's progress reports, without Spark."""

import pickle
from typing import Any

from pyspark.sql import Row

from penstock.pipelines.progress import (
    ObservedCounts,
    QueryMeter,
    QueryMetrics,
    RateMeter,
    format_line,
)
from pyspark_nsq.offsets import LogKey

A, B = "a" * 32, "b" * 32


def report(batch: int, rows: int, end: dict[str, int], there: dict[str, int]) -> dict[str, Any]:
    source = {"endOffset": {"orders": end}, "latestOffset": {"orders": there}}
    return {
        "timestamp": f"2026-11-15T08:00:{batch:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 1500},
        "sources": [source],
    }


def test_reports_are_counted_once_and_lag_is_by_log() -> None:
    meter = QueryMeter("orders")
    first = report(0, 100, {A: 100, B: 7}, {A: 150, B: 7})
    meter.observe([first])
    meter.observe([first, report(1, 50, {A: 150, B: 7}, {A: 170, B: 9})])
    metrics = meter.metrics(10.0)

    assert (2, 150, 1.5) == (metrics.batches, metrics.rows, metrics.batch_seconds)
    assert {"a" * 8: 20, "b" * 8: 2} == metrics.lag
    assert 22 == metrics.total_lag


def test_remaining_messages_give_the_remaining_time() -> None:
    meter = QueryMeter("orders", target={LogKey("orders", A): 300})
    meter.metrics(10.0)
    meter.observe([report(0, 100, {A: 100}, {A: 400})])
    metrics = meter.metrics(12.0)

    assert 200 == metrics.remaining
    assert 50.0 == metrics.rows_per_second
    assert 4.0 == metrics.seconds_remaining
    assert "orders: 100 messages, 50.0/s, batch 1.5 s, lag 300, 4 s left" == format_line(metrics)


def test_a_rate_is_constant_during_long_batches_and_decreases_when_overdue() -> None:
    meter = RateMeter()
    for at in range(5):
        meter.rate(30.0 * at, 3000 * at)

    assert 100.0 == meter.rate(170.0, 12_000)
    assert 100.0 == meter.rate(179.0, 12_000)
    assert 9000 / 570 == meter.rate(600.0, 12_000)
    assert RateMeter().rate(1.0, 0) is None


def test_offsets_of_other_sources_are_ignored() -> None:
    meter = QueryMeter("rate")
    strange = report(0, 3, {}, {}) | {"sources": [{"endOffset": "7", "latestOffset": None}]}
    meter.observe([strange])

    assert QueryMetrics(name="rate", batches=1, rows=3, batch_seconds=1.5) == meter.metrics(1.0)


def observed(batch: int, **counts: int) -> dict[str, Any]:
    return {"batchId": batch, "observedMetrics": {"counts": Row(**counts)} if counts else None}


def test_observed_counts_are_summed_once_for_each_batch() -> None:
    counts = ObservedCounts()

    assert {} == counts.totals([observed(0)])
    assert {"rejected": 0, "out": 3} == counts.totals([observed(0, rejected=0, out=3)])
    reports = [observed(0, rejected=0, out=3), observed(1, rejected=1, out=2), observed(2)]
    for _ in range(2):
        assert {"rejected": 1, "out": 5} == counts.totals(reports)
    assert {"rejected": 1, "out": 6} == counts.totals([*reports, observed(2, rejected=0, out=1)])


def test_observed_counts_do_not_grow_with_the_number_of_batches() -> None:
    counts, sizes = ObservedCounts(), []
    for last in range(1, 2000):  # Spark keeps the last 20
        window = range(max(last - 20, 0), last)
        assert {"out": 1000 * last} == counts.totals(observed(each, out=1000) for each in window)
        sizes.append(len(pickle.dumps(counts)))

    assert max(sizes) < sizes[0] + 32  # only the number of digits changes
