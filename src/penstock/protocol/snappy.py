"""Snappy's framing format, as NSQ uses it.

A stream is a run of chunks, and begins with a stream identifier:

    type    1 byte
    length  3 bytes, little-endian: of what follows
    data    type 0x00: checksum, compressed bytes
            type 0x01: checksum, bytes as they are
            type 0xff: "sNaPpY"
            types 0x80 to 0xfe: padding and what a later version may add, to be skipped

The checksum is the masked CRC-32C of the plain bytes, of which a chunk holds 65,536 at most. Chunks
know nothing of each other, so a small one gains little; one that gains nothing goes as it is.
"""

from struct import Struct
from typing import Final

import cramjam
import google_crc32c

from penstock.common.errors import CorruptStreamError
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.layer import PIECE_BYTES_MAX

__all__ = ["Snappy"]

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"

PLAIN_BYTES_MAX: Final = 65_536  # in a chunk, says the format
COMPRESSED_BYTES_MAX: Final = 76_490  # what snappy makes of that at worst

# What one `read` looks at, however small the chunks are, and how many in a row may bring nothing:
# of either, a few kilobytes could hold enough to keep us busy for long.
CHUNKS_PER_READ: Final = 256
EMPTY_CHUNKS_MAX: Final = 64

# Below this many bytes, compressing costs more than the few bytes that it can save.
COMPRESSED_FROM_BYTES: Final = 64

_COMPRESSED, _PLAIN, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_HEADER_BYTES, _CHECKSUM_BYTES = 4, 4

# The least and the most bytes of a chunk, by its type.
_LENGTHS: Final = {
    _COMPRESSED: (_CHECKSUM_BYTES, _CHECKSUM_BYTES + COMPRESSED_BYTES_MAX),
    _PLAIN: (_CHECKSUM_BYTES, _CHECKSUM_BYTES + PLAIN_BYTES_MAX),
    _IDENTIFIER: (len(STREAM_IDENTIFIER) - _HEADER_BYTES,) * 2,
}

# Header and checksum together: the type is the lowest byte of the first word.
_PREFIX = Struct("<II")

_compress = cramjam.snappy.compress_raw
_decompress = cramjam.snappy.decompress_raw
_plain_length = cramjam.snappy.decompress_raw_len
_crc32c = google_crc32c.value


class Snappy:
    """A `Layer`: both streams of a connection that negotiated snappy."""

    __slots__ = ("_begun", "_buffer", "_corrupt", "_empty_chunks", "_identified", "_skip")

    def __init__(self) -> None:
        self._begun = False  # we have sent our stream identifier
        self._identified = False  # the peer has sent its own
        self._buffer = ReceiveBuffer()
        self._skip = 0  # bytes yet to come of a chunk that is skipped
        self._empty_chunks = 0  # since the last one that was not
        self._corrupt: CorruptStreamError | None = None  # what is next, if it is that

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            parts.append(STREAM_IDENTIFIER)
        if len(data) <= PLAIN_BYTES_MAX:
            _append_chunk(parts, data)
        else:
            for start in range(0, len(data), PLAIN_BYTES_MAX):
                _append_chunk(parts, data[start : start + PLAIN_BYTES_MAX])
        return b"".join(parts)

    def receive(self, data: bytes) -> None:
        self._buffer.append(data)

    def read(self) -> bytes:
        if self._corrupt is not None:
            raise self._corrupt
        pieces: list[bytes] = []
        try:
            self._read_chunks(pieces)
        except CorruptStreamError as failure:
            if not pieces:
                raise
            self._corrupt = failure
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_chunks(self, pieces: list[bytes]) -> None:
        room = PIECE_BYTES_MAX
        while room >= PLAIN_BYTES_MAX and len(pieces) < CHUNKS_PER_READ and self._buffer.is_ready():
            piece = self._next_chunk()
            if piece:
                self._empty_chunks = 0
                pieces.append(piece)
                room -= len(piece)

    def _next_chunk(self) -> bytes:
        """The plain bytes of the next chunk; none if it has no such, or has not come whole."""
        if self._skip:
            return self._skip_what_is_there()
        buffer = self._buffer
        data, start = buffer.data, buffer.start + _HEADER_BYTES
        if len(data) < start:
            buffer.want(_HEADER_BYTES)
            return b""
        header = int.from_bytes(data[start - _HEADER_BYTES : start], "little")
        kind, length = header & 0xFF, header >> 8
        self._check_header(kind, length)
        if _SKIPPABLE <= kind < _IDENTIFIER:
            buffer.start = start
            self._skip = length
            self._count_as_empty()
            return b""
        end = start + length
        if len(data) < end:
            buffer.want(_HEADER_BYTES + length)
            return b""
        buffer.start = end
        self._count_as_empty()  # until it turns out not to be
        if kind == _IDENTIFIER:
            return self._identify(data[start:end])
        return _plain_bytes(kind, data, start, end)

    def _skip_what_is_there(self) -> bytes:
        buffer = self._buffer
        size = min(self._skip, len(buffer.data) - buffer.start)
        buffer.start += size
        self._skip -= size
        return b""

    def _check_header(self, kind: int, length: int) -> None:
        if not self._identified and kind != _IDENTIFIER:
            raise CorruptStreamError("snappy: the stream does not begin with its identifier")
        limits = _LENGTHS.get(kind)
        if limits is None:
            if kind < _SKIPPABLE:
                raise CorruptStreamError(f"snappy: a chunk of unknown type {kind:#04x}")
        elif not limits[0] <= length <= limits[1]:
            raise CorruptStreamError(f"snappy: a chunk of type {kind:#04x} with {length} bytes")

    def _count_as_empty(self) -> None:
        self._empty_chunks += 1
        if self._empty_chunks > EMPTY_CHUNKS_MAX:
            raise CorruptStreamError("snappy: too many chunks with nothing in them")

    def _identify(self, name: bytes) -> bytes:
        if name != STREAM_IDENTIFIER[_HEADER_BYTES:]:
            raise CorruptStreamError("snappy: not a stream identifier")
        self._identified = True
        return b""


def _append_chunk(parts: list[bytes], plain: bytes) -> None:
    size = len(plain)
    checksum = _mask(_crc32c(plain))
    if size >= COMPRESSED_FROM_BYTES:
        compressed = bytes(_compress(plain))
        if len(compressed) < size - size // 8:
            length = len(compressed) + _CHECKSUM_BYTES
            parts += (_PREFIX.pack(_COMPRESSED | length << 8, checksum), compressed)
            return
    parts += (_PREFIX.pack(_PLAIN | size + _CHECKSUM_BYTES << 8, checksum), plain)


def _plain_bytes(kind: int, data: bytes, start: int, end: int) -> bytes:
    """The plain bytes of the chunk whose checksum begins at `start`."""
    checksum = int.from_bytes(data[start : start + _CHECKSUM_BYTES], "little")
    plain = data[start + _CHECKSUM_BYTES : end]
    if kind == _COMPRESSED:
        plain = _decompressed(plain)
    if _mask(_crc32c(plain)) != checksum:
        raise CorruptStreamError("snappy: wrong checksum")
    return plain


def _decompressed(compressed: bytes) -> bytes:
    try:
        length = _plain_length(compressed)
        if length > PLAIN_BYTES_MAX:  # found out before as much is made room for
            raise CorruptStreamError(f"snappy: a chunk of {length} bytes when decompressed")
        return bytes(_decompress(compressed))
    except cramjam.DecompressionError:
        raise CorruptStreamError("snappy: a chunk that cannot be decompressed") from None


def _mask(crc: int) -> int:
    """The format's rotation, made for data that holds checksums of itself."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
