"""A walk over a segment finds every sound batch, and names every byte that is none."""

import pytest
from tests.storage.frames import frame

from penstock.storage.batch import MAGIC, FoundBatch, batch_parts
from penstock.storage.files import File
from penstock.storage.scan import SCAN_BYTES, BadBytes, walk
from penstock.testing import MemoryFiles


def segment_of(*bodies: bytes) -> bytes:
    data = b""
    for seq, body in enumerate(bodies):
        data += b"".join(batch_parts(frame(body), 1, seq, len(data), 0, 0))
    return data


def file_with(data: bytes) -> File:
    files = MemoryFiles()
    file = files.open("file", "create")
    file.write(data, 0)
    return file


def found_in(data: bytes) -> list[FoundBatch | BadBytes]:
    return list(walk(file_with(data), 0, len(data)))


def spans(found: list[FoundBatch | BadBytes]) -> list[tuple[str, int, int]]:
    return [
        ("bad", each.position, each.end)
        if isinstance(each, BadBytes)
        else ("batch", each.batch.position, each.batch.end)
        for each in found
    ]


ONE, TWO, THREE = b"1" * 40, b"2" * 50, b"3" * 60
WHOLE = segment_of(ONE, TWO, THREE)
SECOND_AT = len(segment_of(ONE))
THIRD_AT = len(segment_of(ONE, TWO))
ALL_SPANS = [
    ("batch", 0, SECOND_AT),
    ("batch", SECOND_AT, THIRD_AT),
    ("batch", THIRD_AT, len(WHOLE)),
]


def test_a_sound_segment_is_all_batches() -> None:
    found = found_in(WHOLE)

    assert ALL_SPANS == spans(found)
    assert [frame(body) for body in (ONE, TWO, THREE)] == [
        each.frames for each in found if isinstance(each, FoundBatch)
    ]


def test_batches_larger_than_a_piece_are_found() -> None:
    large = segment_of(b"x" * (2 * SCAN_BYTES), ONE, b"y" * (SCAN_BYTES - 100), TWO)

    assert 4 == len(found_in(large))
    assert all(isinstance(each, FoundBatch) for each in found_in(large))


@pytest.mark.parametrize("at", range(SECOND_AT, THIRD_AT))
def test_damage_costs_the_batch_that_it_is_in(at: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 0x10
    found = found_in(bytes(damaged))

    assert [ALL_SPANS[0], ("bad", SECOND_AT, THIRD_AT), ALL_SPANS[2]] == spans(found)
    assert not any(each.is_leftover for each in found if isinstance(each, BadBytes))


@pytest.mark.parametrize("size", range(THIRD_AT + 1, len(WHOLE)))
def test_a_batch_cut_short_at_the_end_is_a_leftover(size: int) -> None:
    *sound, last = found_in(WHOLE[:size])

    assert ALL_SPANS[:2] == spans(sound)
    assert isinstance(last, BadBytes)
    assert (THIRD_AT, size, True) == (last.position, last.end, last.is_leftover)


def test_zeros_at_the_end_are_a_leftover() -> None:
    last = found_in(WHOLE + bytes(SCAN_BYTES + 5))[-1]

    assert isinstance(last, BadBytes)
    assert last.is_leftover


def test_other_bytes_at_the_end_are_damage() -> None:
    last = found_in(WHOLE + bytes(500) + b"x")[-1]

    assert isinstance(last, BadBytes)
    assert not last.is_leftover


def test_a_segment_inside_a_message_is_not_taken_for_batches() -> None:
    inner = segment_of(ONE, TWO)
    outer = bytearray(segment_of(b"", inner + MAGIC * 3, THREE))
    message_at = len(segment_of(b""))
    outer[message_at] ^= 1
    found = found_in(bytes(outer))

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found)]


def test_damage_longer_than_a_piece_is_stepped_over() -> None:
    large = bytearray(segment_of(ONE, b"x" * (2 * SCAN_BYTES), TWO))
    large[SECOND_AT] ^= 1

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found_in(bytes(large)))]


@pytest.mark.timeout(120)
def test_a_file_that_is_shorter_than_it_should_be_is_walked_to_its_end() -> None:
    found = list(walk(file_with(WHOLE[: THIRD_AT + 1]), 0, 100_000_000))

    assert [*ALL_SPANS[:2], ("bad", THIRD_AT, 100_000_000)] == spans(found)
