"""How garbage collections are timed; the figures themselves are the program's, in test_stats."""

import gc
from collections.abc import Iterator

import pytest

from penstock.nsqd.memory import PAUSES_KEPT, GcPauses, memory_stats


@pytest.fixture
def pauses() -> Iterator[GcPauses]:
    timed = GcPauses()
    yield timed
    timed.close()


def test_no_collection_is_no_pause(pauses: GcPauses) -> None:
    gc.disable()
    try:
        assert 0 == GcPauses.percentile_us(pauses, 100)
    finally:
        gc.enable()


def test_percentiles_are_of_the_latest_pauses(pauses: GcPauses) -> None:
    pauses._pauses_us.extend(range(1, 1001))

    assert PAUSES_KEPT == len(pauses._pauses_us)
    assert (1000, 998, 988) == tuple(map(pauses.percentile_us, (100, 99, 95)))


def test_every_collection_is_timed(pauses: GcPauses) -> None:
    before = memory_stats(pauses)["gc_total_runs"]
    for _ in range(3):
        gc.collect()

    assert 3 <= len(pauses._pauses_us)
    assert before + 3 <= memory_stats(pauses)["gc_total_runs"]


def test_a_closed_one_times_no_more() -> None:
    timed = GcPauses()
    timed.close()
    gc.collect()

    assert 0 == timed.percentile_us(100)
