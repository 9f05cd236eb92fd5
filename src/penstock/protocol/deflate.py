"""Deflate, as NSQ uses it: one raw stream (RFC 1951, no zlib header) each way, flushed per write.

A flush ends on a byte, and leaves what was said before in both sides' windows: the frames of one
connection are much alike, so even a small one is sent as little more than what is new in it.
"""

import zlib

from penstock.common.errors import CorruptStreamError
from penstock.protocol.layer import PIECE_BYTES_MAX

__all__ = ["Deflate"]

_RAW = -zlib.MAX_WBITS

# What a flush ends with.
_FLUSHED = b"\x00\x00\xff\xff"


class Deflate:
    """A `Layer`: both streams of a connection that negotiated deflate."""

    __slots__ = ("_compressor", "_decompressor", "_received", "_unflushed")

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self._received = b""
        self._unflushed = b""  # to be read after that

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        compressor = self._compressor
        return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)

    def receive(self, data: bytes) -> None:
        # zlib returns nothing of what it is given if it cannot read all of it, so what the peer has
        # flushed is read alone: some clients take their leave in plain bytes behind it.
        if self._received or self._unflushed:
            data = self._received + self._unflushed + data
        flushed = data.rfind(_FLUSHED) + len(_FLUSHED)
        if len(_FLUSHED) <= flushed < len(data):
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
        # Also without input: the last call may have stopped at the limit with everything consumed.
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
