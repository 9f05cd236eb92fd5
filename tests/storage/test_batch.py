"""Encoding, decoding and scanning of batches; damage is detected and skipped."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.frames import frame

from penstock.common.errors import CorruptBatchError
from penstock.storage.batch import (
    HEADER_BYTES,
    MAGIC,
    SCAN_BYTES,
    BadBytes,
    BatchHeader,
    StoredBatch,
    complete_batches,
    decode_header,
    encode_batch,
    scan_batches,
    split_frames,
    verify_frames,
)
from penstock.storage.files import File
from penstock.testing import MemoryFiles

POSITION = 64
FRAMES = b"".join(map(frame, [b"one", b"", b"three"]))

# By hand from docs/reference/log_format.md: one message of three bytes, at byte 64.
GOLDEN = bytes.fromhex(
    "9e505342"  # magic
    "c744af21"  # header_crc
    "01000000"  # version, flags, reserved
    "00000001"  # message_count
    "00000007"  # frames_size
    "8f337f99"  # frames_crc
    "0000000000000005"  # first_seq
    "0000000000000040"  # position
    "0000000000000007"  # timestamp_ns
    "0000000000000009"  # due_ns
    "00000003616263"  # the frame
)


def encoded(frames: bytes = FRAMES, count: int = 3, position: int = POSITION) -> bytes:
    return b"".join(encode_batch(frames, count, 100, position, 7, 9))


def crc32c_bitwise(data: bytes) -> int:
    """Bit by bit, reflected polynomial 0x82f63b78: independent of the code under test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class TestHeader:
    def test_encoding_matches_the_specification(self) -> None:
        assert GOLDEN == b"".join(encode_batch(b"\0\0\0\3abc", 1, 5, 64, 7, 9))
        assert BatchHeader(64, 5, 1, 7, 0x8F337F99, 7, 9) == decode_header(GOLDEN, 0, 64)

    def test_the_checksums_are_crc32c(self) -> None:
        assert crc32c_bitwise(GOLDEN[8:56]) == int.from_bytes(GOLDEN[4:8])
        assert crc32c_bitwise(GOLDEN[56:]) == int.from_bytes(GOLDEN[20:24])

    def test_round_trip(self) -> None:
        batch = decode_header(b"before" + encoded(), 6, POSITION)

        assert (100, 103, 3) == (batch.first_seq, batch.next_seq, batch.message_count)
        assert (7, 9) == (batch.timestamp_ns, batch.due_ns)
        assert POSITION + HEADER_BYTES == batch.frames_position
        assert POSITION + len(encoded()) == batch.end

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda data: b"x" + data[1:], "no batch header"),
            (lambda data: data[:55], "incomplete header"),
            (lambda data: data[:30] + b"x" + data[31:], "the header does not match its checksum"),
        ],
    )
    def test_damaged_header_is_rejected(
        self, change: Callable[[bytes], bytes], reason: str
    ) -> None:
        with pytest.raises(CorruptBatchError, match=reason):
            decode_header(change(encoded()), 0, POSITION)

    def test_batch_at_another_position_is_rejected(self) -> None:
        with pytest.raises(CorruptBatchError, match="the batch belongs at byte 64"):
            decode_header(encoded(), 0, POSITION + 1)

    @pytest.mark.parametrize("field", [8, 9])
    def test_unknown_version_or_flag_is_rejected(self, field: int) -> None:
        fields = bytearray(encoded()[8:HEADER_BYTES])
        fields[field - 8] += 1
        header = encoded()[:4] + crc32c_bitwise(bytes(fields)).to_bytes(4) + fields

        with pytest.raises(CorruptBatchError, match="unsupported batch"):
            decode_header(header, 0, POSITION)


class TestFrames:
    def test_changed_frames_are_rejected(self) -> None:
        batch = decode_header(encoded(), 0, POSITION)

        with pytest.raises(CorruptBatchError, match="incomplete batch"):
            verify_frames(batch, FRAMES[:-1])
        with pytest.raises(CorruptBatchError, match="the frames do not match their checksum"):
            verify_frames(batch, FRAMES[:-1] + b"x")

    @given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
    def test_split_frames_of_different_sizes(self, bodies: list[bytes]) -> None:
        split = list(map(frame, bodies))
        joined = b"".join(split)
        batch = decode_header(encoded(joined, len(split)), 0, POSITION)

        assert split == split_frames(batch, joined)

    @given(st.integers(1, 50), st.integers(0, 300))
    def test_split_frames_of_equal_size(self, count: int, size: int) -> None:
        split = [frame(bytes([at]) * size) for at in range(count)]
        joined = b"".join(split)
        batch = decode_header(encoded(joined, count), 0, POSITION)

        assert split == split_frames(batch, joined)

    def test_split_frames_whose_average_size_equals_the_first(self) -> None:
        split = [frame(b"four"), frame(b"12"), frame(b"123456")]
        joined = b"".join(split)
        batch = decode_header(encoded(joined, 3), 0, POSITION)

        assert split == split_frames(batch, joined)

    @pytest.mark.parametrize(
        ("joined", "count"),
        [
            (frame(b"one") + frame(b"two"), 3),
            (frame(b"one") + frame(b"twice"), 1),
            (frame(b"one") + b"\0\0\0\x09two", 2),
            (frame(b"one") + b"\0\0", 1),
        ],
    )
    def test_frames_with_wrong_sizes_are_rejected(self, joined: bytes, count: int) -> None:
        batch = decode_header(encoded(joined, count), 0, POSITION)

        with pytest.raises(CorruptBatchError, match=f"does not contain {count} complete frames"):
            split_frames(batch, joined)


class TestCompleteBatches:
    def test_incomplete_batch_is_not_returned(self) -> None:
        first = encoded(position=0)
        second = encoded(position=len(first))
        for size in range(len(first), len(first) + len(second)):
            found = list(complete_batches((first + second)[:size], 0))

            assert [FRAMES] == [frames for _, frames in found]

    def test_damage_is_raised_after_the_batches_before_it(self) -> None:
        first = encoded(position=0)
        second = bytearray(encoded(position=len(first)))
        second[-1] ^= 1
        found = complete_batches(first + bytes(second), 0)

        assert 0 == next(found)[0].position
        with pytest.raises(CorruptBatchError):
            next(found)


@given(st.data())
def test_every_flipped_bit_is_detected(data: st.DataObject) -> None:
    damaged = bytearray(encoded())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(CorruptBatchError):
        verify_frames(decode_header(bytes(damaged), 0, POSITION), bytes(damaged[HEADER_BYTES:]))


def segment_of(*bodies: bytes) -> bytes:
    data = b""
    for seq, body in enumerate(bodies):
        data += b"".join(encode_batch(frame(body), 1, seq, len(data), 0, 0))
    return data


def file_with(data: bytes) -> File:
    files = MemoryFiles()
    file = files.open("file", "create")
    file.write(data, 0)
    return file


def found_in(data: bytes) -> list[StoredBatch | BadBytes]:
    return list(scan_batches(file_with(data), 0, len(data)))


def spans(found: list[StoredBatch | BadBytes]) -> list[tuple[str, int, int]]:
    return [
        ("bad", each.position, each.end)
        if isinstance(each, BadBytes)
        else ("batch", each.header.position, each.header.end)
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


def test_scan_of_a_valid_segment() -> None:
    found = found_in(WHOLE)

    assert ALL_SPANS == spans(found)
    assert [frame(body) for body in (ONE, TWO, THREE)] == [
        each.frames for each in found if isinstance(each, StoredBatch)
    ]


def test_scan_finds_batches_larger_than_one_read() -> None:
    large = segment_of(b"x" * (2 * SCAN_BYTES), ONE, b"y" * (SCAN_BYTES - 100), TWO)

    assert 4 == len(found_in(large))
    assert all(isinstance(each, StoredBatch) for each in found_in(large))


@pytest.mark.parametrize("at", range(SECOND_AT, THIRD_AT))
def test_scan_skips_only_the_damaged_batch(at: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 0x10
    found = found_in(bytes(damaged))

    assert [ALL_SPANS[0], ("bad", SECOND_AT, THIRD_AT), ALL_SPANS[2]] == spans(found)
    assert not any(each.is_leftover for each in found if isinstance(each, BadBytes))


@pytest.mark.parametrize("size", range(THIRD_AT + 1, len(WHOLE)))
def test_incomplete_batch_at_the_end_is_a_leftover(size: int) -> None:
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


def test_segment_inside_a_message_is_not_scanned() -> None:
    inner = segment_of(ONE, TWO)
    outer = bytearray(segment_of(b"", inner + MAGIC * 3, THREE))
    message_at = len(segment_of(b""))
    outer[message_at] ^= 1
    found = found_in(bytes(outer))

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found)]


def test_scan_skips_damage_longer_than_one_read() -> None:
    large = bytearray(segment_of(ONE, b"x" * (2 * SCAN_BYTES), TWO))
    large[SECOND_AT] ^= 1

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found_in(bytes(large)))]


@pytest.mark.timeout(120)
def test_scan_of_a_file_shorter_than_expected() -> None:
    found = list(scan_batches(file_with(WHOLE[: THIRD_AT + 1]), 0, 100_000_000))

    assert [*ALL_SPANS[:2], ("bad", THIRD_AT, 100_000_000)] == spans(found)
