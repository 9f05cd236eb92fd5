"""Compression: Deflate and Snappy, and the layers between a connection's transport and protocol.

A layer (compression or TLS) transforms the two byte streams of one connection. Layers stack: the
result of one layer's `read` is passed to the next one's `receive`. A `read` returns at most
PIECE_BYTES_MAX, so that a peer that sends a gigabyte of zeros in a compressed megabyte cannot fill
the memory.

Deflate is one raw stream (RFC 1951, without zlib header) in each direction, flushed after each
write. The window spans flushes: frames of one connection are similar, so that even small ones
compress well.

Snappy is the framing format: a run of chunks that begins with a stream identifier.

    type    1 byte
    length  3 bytes, little-endian, of the data
    data    type 0x00: checksum, compressed bytes
            type 0x01: checksum, uncompressed bytes
            type 0xff: "sNaPpY"
            types 0x80 to 0xfe: padding and future extensions, skipped

The checksum is the masked CRC-32C of at most 65,536 uncompressed bytes. Chunks are compressed
independently, so small ones gain little; a chunk that would not shrink is sent uncompressed.
"""

import zlib
from struct import Struct
from typing import Final, Protocol

import cramjam
import google_crc32c

from penstock.common.errors import CorruptStreamError
from penstock.protocol.buffer import ReceiveBuffer

__all__ = ["PIECE_BYTES_MAX", "Deflate", "Layer", "LayerStack", "Snappy"]

# Maximum bytes that one `read` returns: large enough to make the cost per call small, small enough
# that other connections do not wait long.
PIECE_BYTES_MAX: Final = 256 * 1024


class Layer(Protocol):
    """A transformation of both byte streams of a connection."""

    def encode(self, data: bytes) -> bytes:
        """The bytes to send for `data`; flushed, so that the peer can decode all of `data`."""
        ...

    def receive(self, data: bytes) -> None:
        """Add received bytes. Call `read` until it returns nothing before the next call."""
        ...

    def read(self) -> bytes:
        """The next decoded bytes; empty if more must be received first.

        Raises CorruptStreamError if the received bytes are invalid, after all complete pieces
        before them were returned. The layer cannot be used afterwards.
        """
        ...


class LayerStack:
    """A `Layer` made of several, such as compression inside TLS."""

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers: list[Layer] = []

    def __bool__(self) -> bool:
        return bool(self._layers)

    def push(self, layer: Layer) -> None:
        """Add a layer on top, next to the protocol."""
        self._layers.append(layer)

    def clear(self) -> None:
        """Remove all layers."""
        self._layers.clear()

    def encode(self, data: bytes) -> bytes:
        for layer in reversed(self._layers):
            data = layer.encode(data)
        return data

    def receive(self, data: bytes) -> None:
        self._layers[0].receive(data)

    def read(self) -> bytes:
        return self._read(len(self._layers) - 1)

    def _read(self, at: int) -> bytes:
        layer = self._layers[at]
        while not (piece := layer.read()):
            if at == 0 or not (below := self._read(at - 1)):
                return b""
            layer.receive(below)
        return piece


# Deflate ------------------------------------------------------------------------------------------

_RAW_STREAM = -zlib.MAX_WBITS

# The last bytes of a flush.
_FLUSH_END = b"\x00\x00\xff\xff"


class Deflate:
    """`Layer` of a connection that negotiated deflate."""

    __slots__ = ("_compressor", "_decompressor", "_received", "_unflushed")

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW_STREAM)
        self._decompressor = zlib.decompressobj(_RAW_STREAM)
        self._received = b""
        self._unflushed = b""  # received after the last flush

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        compressor = self._compressor
        return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)

    def receive(self, data: bytes) -> None:
        # If zlib cannot decode all of its input, it returns nothing. So flushed bytes are decoded
        # alone: some clients send their last command uncompressed after them.
        if self._received or self._unflushed:
            data = self._received + self._unflushed + data
        flushed = data.rfind(_FLUSH_END) + len(_FLUSH_END)
        if len(_FLUSH_END) <= flushed < len(data):
            self._received, self._unflushed = data[:flushed], data[flushed:]
        else:
            self._received, self._unflushed = data, b""

    def read(self) -> bytes:
        piece = self._read()
        if not piece and self._unflushed:
            self._received, self._unflushed = self._received + self._unflushed, b""
            piece = self._read()
        return piece

    def _read(self) -> bytes:
        # Also without input: the last call may have reached the limit after all input was consumed.
        decompressor = self._decompressor
        try:
            piece = decompressor.decompress(self._received, PIECE_BYTES_MAX)
        except zlib.error as failure:
            reason = str(failure).rpartition(": ")[2]
            raise CorruptStreamError(f"deflate: {reason}") from None
        if decompressor.unused_data:
            raise CorruptStreamError("deflate: bytes after the end of the stream")
        self._received = decompressor.unconsumed_tail
        return piece


# Snappy -------------------------------------------------------------------------------------------

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"

PLAIN_BYTES_MAX: Final = 65_536  # per chunk, by the format
COMPRESSED_BYTES_MAX: Final = 76_490  # of a chunk that cannot be compressed

# Maximum chunks per `read`, and maximum consecutive chunks without data: a few kilobytes could
# otherwise contain enough tiny chunks to block the process.
CHUNKS_PER_READ: Final = 256
EMPTY_CHUNKS_MAX: Final = 64

# Smaller chunks are sent uncompressed: compression would save only a few bytes.
COMPRESSED_BYTES_MIN: Final = 64

_COMPRESSED, _PLAIN, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_HEADER_BYTES, _CHECKSUM_BYTES = 4, 4

# Minimum and maximum length of a chunk, by type.
_LENGTHS: Final = {
    _COMPRESSED: (_CHECKSUM_BYTES, _CHECKSUM_BYTES + COMPRESSED_BYTES_MAX),
    _PLAIN: (_CHECKSUM_BYTES, _CHECKSUM_BYTES + PLAIN_BYTES_MAX),
    _IDENTIFIER: (len(STREAM_IDENTIFIER) - _HEADER_BYTES,) * 2,
}

# Header and checksum; the type is the lowest byte of the first integer.
_PREFIX = Struct("<II")

_compress = cramjam.snappy.compress_raw
_decompress = cramjam.snappy.decompress_raw
_plain_length = cramjam.snappy.decompress_raw_len
_crc32c = google_crc32c.value


class Snappy:
    """`Layer` of a connection that negotiated snappy."""

    __slots__ = (
        "_buffer",
        "_empty_chunks",
        "_failure",
        "_has_received_id",
        "_has_sent_id",
        "_skip",
    )

    def __init__(self) -> None:
        self._has_sent_id = False  # the stream identifier
        self._has_received_id = False
        self._buffer = ReceiveBuffer()
        self._skip = 0  # remaining bytes of a chunk that is skipped
        self._empty_chunks = 0  # consecutive
        self._failure: CorruptStreamError | None = None  # raised by the next `read`

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        parts: list[bytes] = []
        if not self._has_sent_id:
            self._has_sent_id = True
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
        if self._failure is not None:
            raise self._failure
        pieces: list[bytes] = []
        try:
            self._read_chunks(pieces)
        except CorruptStreamError as failure:
            if not pieces:
                raise
            self._failure = failure
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
        """The data of the next chunk; empty if it has none or is incomplete."""
        if self._skip:
            return self._skip_received()
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
        self._count_as_empty()  # reset by the caller if it has data
        if kind == _IDENTIFIER:
            return self._identify(data[start:end])
        return _plain_bytes(kind, data, start, end)

    def _skip_received(self) -> bytes:
        buffer = self._buffer
        size = min(self._skip, len(buffer.data) - buffer.start)
        buffer.start += size
        self._skip -= size
        return b""

    def _check_header(self, kind: int, length: int) -> None:
        if not self._has_received_id and kind != _IDENTIFIER:
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
        self._has_received_id = True
        return b""


def _append_chunk(parts: list[bytes], plain: bytes) -> None:
    size = len(plain)
    checksum = _mask(_crc32c(plain))
    if size >= COMPRESSED_BYTES_MIN:
        compressed = bytes(_compress(plain))
        if len(compressed) < size - size // 8:
            length = len(compressed) + _CHECKSUM_BYTES
            parts += (_PREFIX.pack(_COMPRESSED | length << 8, checksum), compressed)
            return
    parts += (_PREFIX.pack(_PLAIN | size + _CHECKSUM_BYTES << 8, checksum), plain)


def _plain_bytes(kind: int, data: bytes, start: int, end: int) -> bytes:
    """The data of the chunk whose checksum is at `start`."""
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
        if length > PLAIN_BYTES_MAX:  # checked before memory is allocated
            raise CorruptStreamError(f"snappy: a chunk of {length} bytes when decompressed")
        return bytes(_decompress(compressed))
    except cramjam.DecompressionError:
        raise CorruptStreamError("snappy: a chunk that cannot be decompressed") from None


def _mask(crc: int) -> int:
    """Mask a checksum as the format requires."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
