"""Garbage collection pauses, event-loop lag and error counters. test_stats covers the figures."""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from penstock.common.clock import SystemClock
from penstock.nsqd.process_metrics import (
    PAUSES_KEPT,
    ErrorCounters,
    GcPauses,
    LoopLag,
    memory_stats,
)


@pytest.fixture
def pauses() -> Iterator[GcPauses]:
    timed = GcPauses()
    yield timed
    timed.close()


def test_without_collections_there_is_no_pause(pauses: GcPauses) -> None:
    gc.disable()
    try:
        assert 0 == GcPauses.percentile_us(pauses, 100)
    finally:
        gc.enable()


def test_percentiles_cover_the_latest_pauses(pauses: GcPauses) -> None:
    pauses._pauses_us.extend(range(1, 1001))

    assert PAUSES_KEPT == len(pauses._pauses_us)
    assert (1000, 998, 988) == tuple(map(pauses.percentile_us, (100, 99, 95)))


def test_every_collection_is_timed(pauses: GcPauses) -> None:
    before = memory_stats(pauses)["gc_total_runs"]
    for _ in range(3):
        gc.collect()

    assert 3 <= len(pauses._pauses_us)
    assert before + 3 <= memory_stats(pauses)["gc_total_runs"]


def test_a_closed_timer_records_no_pauses() -> None:
    timed = GcPauses()
    timed.close()
    gc.collect()

    assert 0 == timed.percentile_us(100)


async def await_samples(lag: LoopLag, count: int) -> None:
    async with asyncio.timeout(60):
        while figures_of(lag)["_count"] < count:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0.001)


def figures_of(lag: LoopLag) -> dict[str, float]:
    return dict(lag.histogram.samples())


def test_the_lag_of_a_blocked_loop_is_the_rest_of_the_block() -> None:
    async def hold_up() -> dict[str, float]:
        lag = LoopLag(SystemClock())
        lag.start()
        time.sleep(0.3)  # noqa: ASYNC251 (blocks the loop on purpose)
        await await_samples(lag, 1)
        lag.stop()
        return figures_of(lag)

    figures = asyncio.run(hold_up())

    assert 1 == figures["_count"]
    assert figures["_sum"] >= 0.199
    assert 0 == figures['_bucket{le="0.1"}']


def test_samples_are_taken_until_it_is_stopped() -> None:
    async def watch() -> tuple[LoopLag, LoopLag]:
        stopped, running = LoopLag(SystemClock()), LoopLag(SystemClock())
        stopped.start()
        running.start()
        await await_samples(stopped, 2)
        stopped.stop()
        await await_samples(running, 4)
        running.stop()
        return stopped, running

    stopped, running = asyncio.run(watch())

    assert [2, 4] == [figures_of(stopped)["_count"], figures_of(running)["_count"]]


def test_errors_are_counted_by_reason() -> None:
    errors = ErrorCounters()
    for reason in ("connections", "topics", "connections"):
        errors.count(reason)

    assert {"connections": 2, "topics": 1} == errors.counts
