"""The sparse index, the index of deferred batches, and the index file."""

import pytest

from penstock.storage.index import (
    CHECKPOINT_BYTES,
    INDEX_SPACING_BYTES,
    Checkpoint,
    DeferredBatch,
    DeferredIndex,
    SparseIndex,
    encode_index,
    index_seed,
    maybe_checkpoint,
    maybe_deferred,
    maybe_index,
)

SEED = index_seed(1, 5)
CHECKPOINT = Checkpoint(5000, 60, 1, 9, deferred_count=2)
DEFERRED = [DeferredBatch(20, 22, 500), DeferredBatch(30, 31, 400)]


def deferred_index() -> DeferredIndex:
    index = DeferredIndex()
    for batch in DEFERRED:
        index.add(batch)
    return index


def batches(index: DeferredIndex | None, first: int = 0, end: int = 99) -> list[DeferredBatch]:
    assert index is not None
    return [batch for found in index.between(first, end) for batch in found]


@pytest.fixture
def index() -> SparseIndex:
    index = SparseIndex()
    index.add(0, 10, 0)
    index.add(1000, 20, 5)
    index.add(2000, 30, 5)
    index.add(3000, 40, 8)
    return index


@pytest.mark.parametrize(
    ("seq", "position"), [(0, 0), (10, 0), (19, 0), (20, 1000), (39, 2000), (99, 3000)]
)
def test_position_of_seq(index: SparseIndex, seq: int, position: int) -> None:
    assert position == index.position_of_seq(seq)


@pytest.mark.parametrize(("time", "position"), [(0, 0), (5, 0), (6, 2000), (8, 2000), (9, 3000)])
def test_position_of_time(index: SparseIndex, time: int, position: int) -> None:
    assert position == index.position_of_time(time)


def test_empty_index_points_to_the_start() -> None:
    assert 0 == SparseIndex().position_of_seq(5)
    assert 0 == SparseIndex().position_of_time(5)


def test_one_entry_per_spacing() -> None:
    index = SparseIndex()
    assert 0 == index.next_position

    index.add(100, 1, 0)
    assert 100 + INDEX_SPACING_BYTES == index.next_position


def test_round_trip(index: SparseIndex) -> None:
    data = encode_index(CHECKPOINT, index, deferred_index(), SEED)
    read = maybe_index(data, SEED)

    assert CHECKPOINT == maybe_checkpoint(data[:CHECKPOINT_BYTES], SEED)
    assert read is not None
    assert index.entries() == read.entries()
    assert index.next_position == read.next_position
    assert DEFERRED == batches(maybe_deferred(data, SEED))


def test_every_flipped_bit_is_detected(index: SparseIndex) -> None:
    data = encode_index(CHECKPOINT, index, deferred_index(), SEED)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8

        assert None in (maybe_index(bytes(damaged), SEED), maybe_deferred(bytes(damaged), SEED))
        assert (None if bit < CHECKPOINT_BYTES * 8 else CHECKPOINT) == maybe_checkpoint(
            bytes(damaged), SEED
        )


def test_incomplete_file_is_rejected(index: SparseIndex) -> None:
    data = encode_index(CHECKPOINT, index, deferred_index(), SEED)

    assert all(None is maybe_deferred(data[:size], SEED) for size in range(len(data)))
    entries_end = len(data) - len(deferred_index().encode())
    assert all(None is maybe_index(data[:size], SEED) for size in range(entries_end))
    assert all(None is maybe_checkpoint(data[:size], SEED) for size in range(CHECKPOINT_BYTES))


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, 99, DEFERRED),
        (21, 31, DEFERRED),
        (22, 31, DEFERRED[1:]),
        (0, 30, DEFERRED[:1]),
        (22, 30, []),
    ],
)
def test_deferred_batches_between_sequence_numbers(
    first: int, end: int, expected: list[DeferredBatch]
) -> None:
    assert expected == batches(deferred_index(), first, end)


def test_deferred_batches_come_in_lists_of_bounded_length() -> None:
    index = DeferredIndex()
    for number in range(2500):
        index.add(DeferredBatch(number, number + 1, 7))

    assert [1024, 1024, 452] == [len(found) for found in index.between(0, 2500)]


@pytest.mark.parametrize(
    "other", [index_seed(1, 6), index_seed(2, 5), None], ids=["segment", "log", "format 1"]
)
def test_index_file_of_another_segment_is_rejected(index: SparseIndex, other: int | None) -> None:
    data = encode_index(CHECKPOINT, index, deferred_index(), other)

    assert None is maybe_checkpoint(data, SEED)
    assert None is maybe_index(data, SEED)
    assert None is maybe_deferred(data, SEED)
    assert CHECKPOINT == maybe_checkpoint(data, other)


def test_index_matches_only_a_segment_that_contains_its_entries() -> None:
    index = SparseIndex()
    index.add(40, 100, 0)
    index.add(900, 200, 7)

    assert index.matches(100, 901)
    assert not index.matches(100, 900)
    assert not index.matches(101, 901)
    assert SparseIndex().matches(100, 0)
    assert not SparseIndex().matches(100, 1)
