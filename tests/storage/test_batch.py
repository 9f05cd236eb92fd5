"""Encoding, decoding and scanning of batches; damage is detected and skipped."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.frames import frame

from penstock.common.errors import CorruptBatchError
from penstock.storage.attributes import (
    MessageAttributes,
    decode_attributes,
    encode_attributes,
)
from penstock.storage.batch import (
    HEADER_BYTES,
    MAGIC,
    SCAN_BYTES,
    BadBytes,
    BatchHeader,
    SegmentHeader,
    StoredBatch,
    checksum_seed,
    complete_batches,
    decode_header,
    encode_batch,
    encode_segment_header,
    find_seed,
    maybe_segment_header,
    scan_batches,
    split_frames,
    verify_frames,
)
from penstock.storage.files import File
from penstock.testing import MemoryFiles
from penstock.testing.format_1 import encode_batch_1

POSITION = 64
FRAMES = b"".join(map(frame, [b"one", b"", b"three"]))
LOG_ID = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
SEED = checksum_seed(LOG_ID)

# By hand from docs/reference/log_format.md: one message of three bytes.
GOLDEN = bytes.fromhex(
    "9e505342"  # magic
    "f85a2543"  # header_crc
    "02000038"  # version, flags, header_size
    "00000001"  # message_count
    "00000007"  # frames_size
    "8f337f99"  # frames_crc
    "0000000000000005"  # first_seq
    "0000000000000003"  # epoch
    "0000000000000007"  # timestamp_ns
    "0000000000000009"  # due_ns
    "00000003616263"  # the frame
)

# The same with the key `k` as attribute.
GOLDEN_WITH_ATTRIBUTES = bytes.fromhex(
    "9e505342"  # magic
    "47dcfea8"  # header_crc
    "02010040"  # version, flags, header_size
    "00000001"  # message_count
    "00000007"  # frames_size
    "8f337f99"  # frames_crc
    "0000000000000005"  # first_seq
    "0000000000000003"  # epoch
    "0000000000000007"  # timestamp_ns
    "0000000000000009"  # due_ns
    "00000007"  # attributes_size
    "d5bf3382"  # attributes_crc
    "00000003616263"  # the frame
    "9181a16bc4016b"  # an array of one map: "k" is the binary "k"
)

# The same in format 1, at byte 64.
GOLDEN_1 = bytes.fromhex(
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

GOLDEN_SEGMENT_HEADER = bytes.fromhex(
    "9e505353"  # segment_magic
    "bfdf2dad"  # segment_crc
    "02000028"  # version, flags, header_size
    "00000000"  # reserved
    "000102030405060708090a0b0c0d0e0f"  # log_id
    "0000000000000005"  # first_seq
)


def encoded(frames: bytes = FRAMES, count: int = 3, attributes: bytes = b"") -> bytes:
    return b"".join(encode_batch(frames, count, 100, 3, 7, 9, SEED, attributes))


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
        assert GOLDEN == b"".join(encode_batch(b"\0\0\0\3abc", 1, 5, 3, 7, 9, SEED))
        assert BatchHeader(64, 5, 1, 7, 0x8F337F99, 7, 9, 3) == decode_header(GOLDEN, 0, 64, SEED)

    def test_encoding_with_attributes_matches_the_specification(self) -> None:
        attributes = encode_attributes([MessageAttributes(key=b"k")])
        batch = b"".join(encode_batch(b"\0\0\0\3abc", 1, 5, 3, 7, 9, SEED, attributes))

        assert GOLDEN_WITH_ATTRIBUTES == batch
        header = decode_header(batch, 0, 64, SEED)
        assert (64, 7, 64 + 64 + 14) == (header.header_size, header.attributes_size, header.end)

    def test_batch_of_format_1_is_read(self) -> None:
        assert GOLDEN_1 == encode_batch_1(b"\0\0\0\3abc", 1, 5, 64, 7, 9)
        assert BatchHeader(64, 5, 1, 7, 0x8F337F99, 7, 9) == decode_header(GOLDEN_1, 0, 64, None)
        with pytest.raises(CorruptBatchError, match="the batch belongs at byte 64"):
            decode_header(GOLDEN_1, 0, 65, None)

    def test_batch_is_rejected_in_a_segment_of_the_other_format(self) -> None:
        with pytest.raises(CorruptBatchError, match="does not match its checksum"):
            decode_header(GOLDEN_1, 0, 64, SEED)
        with pytest.raises(CorruptBatchError, match="does not match its checksum"):
            decode_header(GOLDEN, 0, 64, None)

    def test_the_checksums_are_crc32c(self) -> None:
        assert crc32c_bitwise(LOG_ID + GOLDEN[8:56]) == int.from_bytes(GOLDEN[4:8])
        assert crc32c_bitwise(GOLDEN[56:]) == int.from_bytes(GOLDEN[20:24])
        longer = GOLDEN_WITH_ATTRIBUTES
        assert crc32c_bitwise(LOG_ID + longer[8:64]) == int.from_bytes(longer[4:8])
        assert crc32c_bitwise(longer[-7:]) == int.from_bytes(longer[60:64])
        assert crc32c_bitwise(GOLDEN_SEGMENT_HEADER[8:]) == (
            int.from_bytes(GOLDEN_SEGMENT_HEADER[4:8])
        )

    def test_round_trip(self) -> None:
        batch = decode_header(b"before" + encoded(), 6, POSITION, SEED)

        assert (100, 103, 3) == (batch.first_seq, batch.next_seq, batch.message_count)
        assert (3, 7, 9) == (batch.epoch, batch.timestamp_ns, batch.due_ns)
        assert POSITION + HEADER_BYTES == batch.frames_position
        assert POSITION + len(encoded()) == batch.end

    @pytest.mark.parametrize("attributes", [b"", b"attributes"])
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda data: b"x" + data[1:], "no batch header"),
            (lambda data: data[:55], "incomplete header"),
            (lambda data: data[:30] + b"x" + data[31:], "the header does not match its checksum"),
        ],
    )
    def test_damaged_header_is_rejected(
        self, change: Callable[[bytes], bytes], reason: str, attributes: bytes
    ) -> None:
        with pytest.raises(CorruptBatchError, match=reason):
            decode_header(change(encoded(attributes=attributes)), 0, POSITION, SEED)

    def test_header_that_ends_before_the_fields_of_the_attributes_is_rejected(self) -> None:
        for size in range(HEADER_BYTES, 64):
            with pytest.raises(CorruptBatchError, match="incomplete header"):
                decode_header(encoded(attributes=b"a")[:size], 0, POSITION, SEED)

    def test_batch_of_another_log_is_rejected(self) -> None:
        with pytest.raises(CorruptBatchError, match="does not match its checksum"):
            decode_header(encoded(), 0, POSITION, checksum_seed(bytes(16)))

    @pytest.mark.parametrize(
        "kind",
        [
            b"\3\0\0\x38",  # a later version
            b"\2\2\0\x38",  # a flag that readers must know
            b"\2\1\0\x38",  # attributes, but no room for their size
            b"\1\1\0\0",  # a flag in format 1
        ],
    )
    def test_unsupported_batch_is_rejected(self, kind: bytes) -> None:
        fields = kind + encoded()[12:HEADER_BYTES]
        checked = fields if kind[0] == 1 else LOG_ID + fields
        header = MAGIC + crc32c_bitwise(checked).to_bytes(4) + fields

        with pytest.raises(CorruptBatchError, match="unsupported batch"):
            decode_header(header, 0, POSITION, None if kind[0] == 1 else SEED)

    def test_reader_ignores_what_a_later_version_may_add(self) -> None:
        fields = b"\2\x80\0\x3c" + encoded()[12:HEADER_BYTES] + b"more"
        header = MAGIC + crc32c_bitwise(LOG_ID + fields).to_bytes(4) + fields

        (found,) = complete_batches(header + FRAMES, POSITION, SEED)

        assert (FRAMES, b"") == (found.frames, found.attributes)
        assert (60, POSITION + 60 + len(FRAMES)) == (found.header.header_size, found.header.end)


class TestSegmentHeader:
    def test_encoding_matches_the_specification(self) -> None:
        assert GOLDEN_SEGMENT_HEADER == encode_segment_header(LOG_ID, 5)
        assert SegmentHeader(LOG_ID, 5) == maybe_segment_header(GOLDEN_SEGMENT_HEADER + b"batch")

    def test_every_flipped_bit_is_detected(self) -> None:
        for bit in range(len(GOLDEN_SEGMENT_HEADER) * 8):
            damaged = bytearray(GOLDEN_SEGMENT_HEADER)
            damaged[bit // 8] ^= 1 << bit % 8

            assert None is maybe_segment_header(bytes(damaged))

    def test_incomplete_header_is_none(self) -> None:
        for size in range(len(GOLDEN_SEGMENT_HEADER)):
            assert None is maybe_segment_header(GOLDEN_SEGMENT_HEADER[:size])


class TestAttributes:
    def test_round_trip(self) -> None:
        attributes = [
            None,
            MessageAttributes(
                key=b"\xff",
                headers=(("trace", b"1"), ("trace", b"\0")),
                expires_ns=2**63,
                publisher_id=b"id",
            ),
            MessageAttributes(),
        ]

        assert attributes == decode_attributes(encode_attributes(attributes), 3)

    def test_batch_without_attributes(self) -> None:
        assert [None, None] == decode_attributes(b"", 2)

    def test_unknown_keys_are_ignored(self) -> None:
        later = msgspec.msgpack.encode([{"k": b"key", "z": [1, 2]}])

        assert [MessageAttributes(key=b"key")] == decode_attributes(later, 1)

    @pytest.mark.parametrize(
        "data",
        [
            b"\xc1",
            b"\x90",
            b"\x91\x01",
            b"\x91\x81\xa1k\x01",
            b"\x91\x81\xa1h\x91\x92\xa1\xff\xc4\0",
        ],
    )
    def test_invalid_attributes_are_rejected(self, data: bytes) -> None:
        with pytest.raises(CorruptBatchError):
            decode_attributes(data, 1)


class TestFrames:
    def test_changed_frames_are_rejected(self) -> None:
        batch = decode_header(encoded(), 0, POSITION, SEED)

        with pytest.raises(CorruptBatchError, match="incomplete batch"):
            verify_frames(batch, FRAMES[:-1])
        with pytest.raises(CorruptBatchError, match="the frames do not match their checksum"):
            verify_frames(batch, FRAMES[:-1] + b"x")

    @given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
    def test_split_frames_of_different_sizes(self, bodies: list[bytes]) -> None:
        split = list(map(frame, bodies))
        joined = b"".join(split)
        batch = decode_header(encoded(joined, len(split)), 0, POSITION, SEED)

        assert split == split_frames(batch, joined)

    @given(st.integers(1, 50), st.integers(0, 300))
    def test_split_frames_of_equal_size(self, count: int, size: int) -> None:
        split = [frame(bytes([at]) * size) for at in range(count)]
        joined = b"".join(split)
        batch = decode_header(encoded(joined, count), 0, POSITION, SEED)

        assert split == split_frames(batch, joined)

    def test_split_frames_whose_average_size_equals_the_first(self) -> None:
        split = [frame(b"four"), frame(b"12"), frame(b"123456")]
        joined = b"".join(split)
        batch = decode_header(encoded(joined, 3), 0, POSITION, SEED)

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
        batch = decode_header(encoded(joined, count), 0, POSITION, SEED)

        with pytest.raises(CorruptBatchError, match=f"does not contain {count} complete frames"):
            split_frames(batch, joined)


class TestCompleteBatches:
    @pytest.mark.parametrize("attributes", [b"", b"attributes"])
    def test_incomplete_batch_is_not_returned(self, attributes: bytes) -> None:
        first = encoded()
        second = encoded(attributes=attributes)
        for size in range(len(first), len(first) + len(second)):
            found = list(complete_batches((first + second)[:size], 0, SEED))

            assert [FRAMES] == [each.frames for each in found]

    def test_attributes_are_returned(self) -> None:
        (found,) = complete_batches(encoded(attributes=b"attributes"), 0, SEED)

        assert (FRAMES, b"attributes") == (found.frames, found.attributes)

    def test_damage_is_raised_after_the_batches_before_it(self) -> None:
        first, second = encoded(), bytearray(encoded())
        second[-1] ^= 1
        found = complete_batches(first + bytes(second), 0, SEED)

        assert 0 == next(found)[0].position
        with pytest.raises(CorruptBatchError):
            next(found)


@pytest.mark.parametrize("attributes", [b"", b"attributes"])
def test_every_flipped_bit_is_detected(attributes: bytes) -> None:
    whole = encoded(attributes=attributes)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        if damaged[10:12] != whole[10:12]:
            # With the size of the header, its checksum is at another place.
            assert [] == valid_batches(bytes(damaged))
        else:
            with pytest.raises(CorruptBatchError):
                list(complete_batches(bytes(damaged), POSITION, SEED))


def valid_batches(data: bytes) -> list[StoredBatch]:
    with contextlib.suppress(CorruptBatchError):
        return list(complete_batches(data, POSITION, SEED))
    return []


def segment_of(*bodies: bytes, log_id: bytes = LOG_ID) -> bytes:
    data, seed = encode_segment_header(log_id, 0), checksum_seed(log_id)
    for seq, body in enumerate(bodies):
        data += b"".join(encode_batch(frame(body), 1, seq, 0, 0, 0, seed))
    return data


def segment_with_attributes_of(*bodies: bytes) -> bytes:
    data = encode_segment_header(LOG_ID, 0)
    for seq, body in enumerate(bodies):
        data += b"".join(encode_batch(frame(body), 1, seq, 0, 0, 0, SEED, b"attributes"))
    return data


def segment_1_of(*bodies: bytes) -> bytes:
    data = b""
    for seq, body in enumerate(bodies):
        data += encode_batch_1(frame(body), 1, seq, len(data), 0, 0)
    return data


def file_with(data: bytes) -> File:
    files = MemoryFiles()
    file = files.open("file", "create")
    file.write(data, 0)
    return file


def found_in(data: bytes) -> list[StoredBatch | BadBytes]:
    file = file_with(data)
    return list(scan_batches(file, 0, len(data), find_seed(file, LOG_ID)))


def spans(found: list[StoredBatch | BadBytes]) -> list[tuple[str, int, int]]:
    return [
        ("bad", each.position, each.end)
        if isinstance(each, BadBytes)
        else ("batch", each.header.position, each.header.end)
        for each in found
    ]


ONE, TWO, THREE = b"1" * 40, b"2" * 50, b"3" * 60


@dataclass(frozen=True)
class Sample:
    """A segment with three batches: where they are."""

    segment_of: Callable[..., bytes]

    @property
    def whole(self) -> bytes:
        return self.segment_of(ONE, TWO, THREE)

    @property
    def first_at(self) -> int:
        return len(self.segment_of())

    @property
    def second_at(self) -> int:
        return len(self.segment_of(ONE))

    @property
    def third_at(self) -> int:
        return len(self.segment_of(ONE, TWO))

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        return [
            ("batch", self.first_at, self.second_at),
            ("batch", self.second_at, self.third_at),
            ("batch", self.third_at, len(self.whole)),
        ]


SAMPLES = {
    "format 1": Sample(segment_1_of),
    "format 2": Sample(segment_of),
    "format 2 with attributes": Sample(segment_with_attributes_of),
}


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


def test_scan_of_a_valid_segment(sample: Sample) -> None:
    found = found_in(sample.whole)

    assert sample.spans == spans(found)
    assert [frame(body) for body in (ONE, TWO, THREE)] == [
        each.frames for each in found if isinstance(each, StoredBatch)
    ]


def test_scan_finds_batches_larger_than_one_read(sample: Sample) -> None:
    large = sample.segment_of(b"x" * (2 * SCAN_BYTES), ONE, b"y" * (SCAN_BYTES - 100), TWO)

    assert 4 == len(found_in(large))
    assert all(isinstance(each, StoredBatch) for each in found_in(large))


def test_scan_skips_only_the_damaged_batch(sample: Sample) -> None:
    for at in range(sample.second_at, sample.third_at):
        damaged = bytearray(sample.whole)
        damaged[at] ^= 0x10
        found = found_in(bytes(damaged))

        expected = [sample.spans[0], ("bad", sample.second_at, sample.third_at), sample.spans[2]]
        assert expected == spans(found), f"byte {at}"
        assert not any(each.is_leftover for each in found if isinstance(each, BadBytes))


def test_scan_skips_only_a_damaged_header_of_the_segment() -> None:
    sample = SAMPLES["format 2"]
    for at in range(sample.first_at):
        damaged = bytearray(sample.whole)
        damaged[at] ^= 0x10
        found = found_in(bytes(damaged))

        assert [("bad", 0, sample.first_at), *sample.spans] == spans(found), f"byte {at}"
        assert not any(each.is_leftover for each in found if isinstance(each, BadBytes))


def test_incomplete_batch_at_the_end_is_a_leftover(sample: Sample) -> None:
    for size in range(sample.third_at + 1, len(sample.whole)):
        *sound, last = found_in(sample.whole[:size])

        assert sample.spans[:2] == spans(sound)
        assert isinstance(last, BadBytes)
        assert (sample.third_at, size, True) == (last.position, last.end, last.is_leftover)


def test_incomplete_first_write_of_a_segment_is_a_leftover() -> None:
    whole = segment_of(ONE)
    header_size = len(segment_of())
    for size in range(1, len(whole)):
        found = found_in(whole[:size])

        if size == header_size:
            assert [] == found
        else:
            (bad,) = found
            assert isinstance(bad, BadBytes)
            assert bad.is_leftover, f"{size} bytes"


def test_zeros_at_the_end_are_a_leftover(sample: Sample) -> None:
    last = found_in(sample.whole + bytes(SCAN_BYTES + 5))[-1]

    assert isinstance(last, BadBytes)
    assert last.is_leftover


def test_other_bytes_at_the_end_are_damage(sample: Sample) -> None:
    last = found_in(sample.whole + bytes(500) + b"x")[-1]

    assert isinstance(last, BadBytes)
    assert not last.is_leftover


@pytest.mark.parametrize(
    "inner", [segment_1_of(ONE, TWO), segment_of(ONE, TWO, log_id=bytes(16))], ids=["1", "2"]
)
def test_segment_of_another_log_inside_a_message_is_not_scanned(
    sample: Sample, inner: bytes
) -> None:
    outer = bytearray(sample.segment_of(b"", inner + MAGIC * 3, THREE))
    message_at = len(sample.segment_of(b""))
    outer[message_at] ^= 1
    found = found_in(bytes(outer))

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found)]


def test_scan_skips_damage_longer_than_one_read(sample: Sample) -> None:
    large = bytearray(sample.segment_of(ONE, b"x" * (2 * SCAN_BYTES), TWO))
    large[sample.second_at] ^= 1

    assert ["batch", "bad", "batch"] == [kind for kind, _, _ in spans(found_in(bytes(large)))]


@pytest.mark.timeout(120)
def test_scan_of_a_file_shorter_than_expected(sample: Sample) -> None:
    file = file_with(sample.whole[: sample.third_at + 1])
    found = list(scan_batches(file, 0, 100_000_000, find_seed(file, LOG_ID)))

    assert [*sample.spans[:2], ("bad", sample.third_at, 100_000_000)] == spans(found)
