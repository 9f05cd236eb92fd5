"""Deflate and snappy are compatible with other implementations, however the data is split."""

import random
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import cramjam
import google_crc32c
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import CorruptStreamError
from penstock.protocol.compression import PIECE_BYTES_MAX, STREAM_IDENTIFIER, Deflate, Layer, Snappy

NOISE = random.Random(1).randbytes(200_000)


class Codec(NamedTuple):
    """One of our compression layers, and another implementation of the same format."""

    layer: Callable[[], Layer]
    compressor: Callable[[], Callable[[bytes], bytes]]
    decompressor: Callable[[], Callable[[bytes], bytes]]


def zlib_compressor(level: int = 9) -> Callable[[bytes], bytes]:
    stream = zlib.compressobj(level, wbits=-15)
    return lambda data: stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


CODECS = {
    "deflate": Codec(Deflate, zlib_compressor, lambda: zlib.decompressobj(wbits=-15).decompress),
    "snappy": Codec(
        Snappy,
        lambda: snappy.StreamCompressor().compress,
        lambda: snappy.StreamDecompressor().decompress,
    ),
}
BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)

# Small and large, compressible and not, and around the size of snappy's chunks.
WRITES = (
    b"x",
    b"frame " * 20,
    NOISE[:300],
    b"z" * 65_536,
    NOISE[:65_537],
    b"",
    NOISE,
    bytes(300_000),
)


def read_all(layer: Layer) -> bytes:
    return b"".join(iter(layer.read, b""))


def feed(layer: Layer, chunks: Iterable[bytes]) -> bytes:
    plain = b""
    for chunk in chunks:
        layer.receive(chunk)
        plain += read_all(layer)
    return plain


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


class TestBoth:
    @BOTH
    def test_each_write_can_be_read_completely_when_it_has_arrived(self, codec: Codec) -> None:
        ours, theirs = codec.layer(), codec.layer()

        for write in WRITES:
            theirs.receive(ours.encode(write))

            assert write == read_all(theirs)

    @BOTH
    @pytest.mark.parametrize("behind", [b"CLS\n", b"\x01\x05\x00\x00nosum"])
    def test_complete_data_is_read_even_if_invalid_data_follows(
        self, codec: Codec, behind: bytes
    ) -> None:
        ours, theirs = codec.layer(), codec.layer()
        theirs.receive(ours.encode(b"first") + ours.encode(b"second") + behind)

        assert b"firstsecond" == theirs.read()
        for _ in range(2):
            with pytest.raises(CorruptStreamError):
                read_all(theirs)

    @BOTH
    def test_others_can_read_what_we_write(self, codec: Codec) -> None:
        layer, decompress = codec.layer(), codec.decompressor()

        for write in filter(None, WRITES):
            assert write == decompress(layer.encode(write))

    @BOTH
    def test_streams_of_others_can_be_read_in_two_parts_split_anywhere(self, codec: Codec) -> None:
        compress = codec.compressor()
        stream = compress(b"frame " * 20) + compress(NOISE[:100]) + compress(bytes(100))

        for at in range(len(stream) + 1):
            plain = feed(codec.layer(), (stream[:at], stream[at:]))

            assert b"frame " * 20 + NOISE[:100] + bytes(100) == plain

    @BOTH
    def test_streams_of_others_can_be_read_byte_by_byte(self, codec: Codec) -> None:
        stream = codec.compressor()(NOISE[:70_000] + bytes(1000))

        assert NOISE[:70_000] + bytes(1000) == feed(codec.layer(), cut(stream, range(len(stream))))

    @BOTH
    @given(
        writes=st.lists(st.binary(max_size=300) | st.sampled_from(WRITES), max_size=5),
        cuts=st.lists(st.integers(min_value=0)),
    )
    def test_any_writes_in_any_pieces_arrive(
        self, codec: Codec, writes: list[bytes], cuts: list[int]
    ) -> None:
        ours = codec.layer()
        stream = b"".join(map(ours.encode, writes))

        assert b"".join(writes) == feed(codec.layer(), cut(stream, cuts))

    @BOTH
    def test_an_empty_write_sends_nothing(self, codec: Codec) -> None:
        assert b"" == codec.layer().encode(b"")

    @BOTH
    def test_a_decompression_bomb_is_read_in_small_pieces(self, codec: Codec) -> None:
        size = 50_000_000
        bomb = codec.compressor()(bytes(size))
        layer = codec.layer()
        layer.receive(bomb)
        pieces = [len(piece) for piece in iter(layer.read, b"")]

        assert size == sum(pieces)
        assert max(pieces) <= PIECE_BYTES_MAX

    @BOTH
    @given(garbage=st.binary(min_size=1), prefix=st.sampled_from([b"", STREAM_IDENTIFIER]))
    def test_garbage_is_read_or_refused_and_nothing_else(
        self, codec: Codec, garbage: bytes, prefix: bytes
    ) -> None:
        layer = codec.layer()
        layer.receive(prefix + garbage)

        with suppress(CorruptStreamError):
            read_all(layer)


class TestDeflate:
    @pytest.mark.parametrize("level", range(1, 10))
    def test_the_requested_level_is_used(self, level: int) -> None:
        text = " ".join(map(str, range(10_000))).encode()

        assert zlib_compressor(level)(text) == Deflate(level).encode(text)

    def test_nothing_may_follow_the_end_of_a_stream(self) -> None:
        stream = zlib.compress(b"the last", wbits=-15)
        layer = Deflate()

        assert b"the last" == feed(layer, [stream])
        layer.receive(b"more")
        with pytest.raises(CorruptStreamError, match="deflate: bytes after the end of the stream"):
            layer.read()

    def test_invalid_deflate_data_is_refused(self) -> None:
        layer = Deflate()
        layer.receive(b"  V2IDENTIFY\n")

        with pytest.raises(CorruptStreamError, match=r"^deflate: invalid [a-z ]+$"):
            layer.read()


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def checksum(plain: bytes) -> bytes:
    crc = google_crc32c.value(plain)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return int(masked).to_bytes(4, "little")


def compressed(plain: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(plain))


HELLO = chunk(0x01, checksum(b"hello") + b"hello")

# Data after a stream identifier, and the reason why it is refused.
BROKEN = {
    "reserved type": (chunk(0x02, b"?"), "a chunk of unknown type 0x02"),
    "last reserved type": (chunk(0x7F, b""), "a chunk of unknown type 0x7f"),
    "bad checksum": (chunk(0x01, b"\0\0\0\0hello"), "wrong checksum"),
    "bad checksum, compressed": (chunk(0x00, b"\0\0\0\0" + compressed(b"a")), "wrong checksum"),
    "no checksum": (chunk(0x01, b"abc"), "a chunk of type 0x01 with 3 bytes"),
    "plain, too long": (b"\x01\x05\x00\x01", "a chunk of type 0x01 with 65541 bytes"),
    "compressed, too long": (b"\x00\xcf\x2a\x01", "a chunk of type 0x00 with 76495 bytes"),
    "announces too much": (
        chunk(0x00, checksum(b"") + b"\xff\xff\xff\xff\x0f"),
        "a chunk of 4294967295 bytes when decompressed",
    ),
    "announces one too many": (
        chunk(0x00, checksum(bytes(65_537)) + compressed(bytes(65_537))),
        "a chunk of 65537 bytes when decompressed",
    ),
    "not compressed": (chunk(0x00, b"\0\0\0\0\x05x"), "a chunk that cannot be decompressed"),
    "no length at all": (chunk(0x00, b"\0\0\0\0"), "a chunk that cannot be decompressed"),
    "another identifier": (chunk(0xFF, b"sNaPpy"), "not a stream identifier"),
    "identifier, too long": (chunk(0xFF, b"sNaPpY!"), "a chunk of type 0xff with 7 bytes"),
}


class TestSnappy:
    def test_a_stream_starts_with_its_identifier_and_small_data_is_not_compressed(self) -> None:
        layer = Snappy()

        assert b"\xff\x06\x00\x00sNaPpY" + HELLO == layer.encode(b"hello")
        assert HELLO == layer.encode(b"hello")

    def test_incompressible_data_is_not_compressed(self) -> None:
        layer = Snappy()
        layer.encode(b"begin")

        assert chunk(0x01, checksum(NOISE[:5000]) + NOISE[:5000]) == layer.encode(NOISE[:5000])

    def test_compressible_data_is_compressed_in_chunks_of_64_kib(self) -> None:
        layer = Snappy()
        layer.encode(b"begin")
        parts = (bytes(65_536), bytes(464))

        expected = b"".join(chunk(0x00, checksum(each) + compressed(each)) for each in parts)
        assert expected == layer.encode(bytes(66_000))

    @pytest.mark.parametrize(
        "between",
        [
            chunk(0xFE, bytes(1000)),
            chunk(0xFE, b""),
            chunk(0x80, b"?"),
            chunk(0xFD, bytes(100_000)),
            STREAM_IDENTIFIER,
            chunk(0x01, checksum(b"")),
            b"",
        ],
    )
    def test_skippable_chunks_are_skipped(self, between: bytes) -> None:
        stream = STREAM_IDENTIFIER + HELLO + between + HELLO

        assert b"hellohello" == feed(Snappy(), [stream])
        assert b"hellohello" == feed(Snappy(), cut(stream, range(0, len(stream), 7)))

    def test_skipped_chunks_are_not_buffered(self) -> None:
        layer = Snappy()
        layer.receive(STREAM_IDENTIFIER + b"\xfe\xff\xff\xff")
        for _ in range(255):
            layer.receive(bytes(65_536))
            assert b"" == layer.read()
            assert layer._buffer.is_empty()

    @pytest.mark.parametrize(("stream", "reason"), BROKEN.values(), ids=BROKEN)
    def test_a_violation_of_the_format_is_refused_at_once(self, stream: bytes, reason: str) -> None:
        layer = Snappy()
        layer.receive(STREAM_IDENTIFIER + stream)

        with pytest.raises(CorruptStreamError) as refusal:
            read_all(layer)

        assert f"snappy: {reason}" == str(refusal.value)

    def test_the_number_of_empty_chunks_is_limited(self) -> None:
        empty = chunk(0x01, checksum(b"")) + chunk(0x80, b"") + STREAM_IDENTIFIER
        layer = Snappy()
        layer.receive(STREAM_IDENTIFIER + (empty * 20 + chunk(0x01, checksum(b"x") + b"x")) * 3)
        assert b"xxx" == layer.read()

        layer.receive(empty * 22)
        with pytest.raises(CorruptStreamError, match="nothing in them"):
            layer.read()

    def test_one_read_parses_a_limited_number_of_chunks(self) -> None:
        layer = Snappy()
        layer.receive(STREAM_IDENTIFIER + chunk(0x01, checksum(b"x") + b"x") * 600)

        assert [256, 256, 88, 0] == [len(layer.read()) for _ in range(4)]

    def test_a_stream_without_identifier_is_refused(self) -> None:
        layer = Snappy()
        layer.receive(HELLO)

        with pytest.raises(CorruptStreamError, match="does not begin with its identifier"):
            layer.read()

    def test_the_longest_chunks_the_format_allows_are_read(self) -> None:
        plain = NOISE[:65_536]
        stream = STREAM_IDENTIFIER + chunk(0x01, checksum(plain) + plain)
        stream += chunk(0x00, checksum(plain) + compressed(plain))

        assert plain + plain == feed(Snappy(), [stream])
