"""Request bodies, put together as they arrive: of a known size, or in chunks.

Chunks (RFC 9112, section 7.1) are read strictly, because a server that reads them more leniently
than the proxy before it can be made to see other requests than the proxy saw: lines end in CRLF, a
size is hexadecimal digits and nothing else, chunk data is followed by CRLF. Chunk extensions and
trailers are skipped.

A body is kept in one growing buffer, so that its memory is bounded by its size and not by the
number of pieces a peer cuts it into.
"""

import re

from penstock.net.http_server.errors import BadRequest

__all__ = ["Body", "BodyTooBig", "ChunkedBody", "SizedBody"]

# A size with its extensions, or one trailer. Go's limit is its buffer's 4096.
LINE_BYTES_MAX = 4096
TRAILER_BYTES_MAX = 16 * 1024

# 15 digits are a petabyte: the limit on bodies bites first, and no arithmetic overflows in others.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")


class BodyTooBig(Exception):
    """The body is longer than its route takes."""


class SizedBody:
    """Collects `size` bytes."""

    __slots__ = ("_body", "_left", "done")

    def __init__(self, size: int) -> None:
        self.done = not size
        self._body = bytearray()
        self._left = size

    def feed(self, data: bytes, start: int = 0) -> int:
        """Takes what belongs to the body from `data[start:]`; returns the index after it."""
        end = min(start + self._left, len(data))
        self._body += data[start:end]
        self._left -= end - start
        self.done = not self._left
        return end

    def take(self) -> bytes:
        """The whole body, once it is `done`."""
        assert self.done
        return bytes(self._body)


class ChunkedBody:
    """Collects chunks of at most `bytes_max` together."""

    __slots__ = ("_body", "_bytes_max", "_chunk_left", "_line", "_step", "_trailer_bytes", "done")

    def __init__(self, bytes_max: int) -> None:
        self.done = False
        self._body = bytearray()
        self._bytes_max = bytes_max
        self._line = bytearray()
        self._chunk_left = 0
        self._trailer_bytes = 0
        self._step = self._size_line

    def feed(self, data: bytes, start: int = 0) -> int:
        """Takes what belongs to the body from `data[start:]`; returns the index after it.

        Raises BadRequest where the chunking is broken, and BodyTooBig.
        """
        while start < len(data) and not self.done:
            start = self._step(data, start)
        return start

    def take(self) -> bytes:
        """The whole body, once it is `done`."""
        assert self.done
        return bytes(self._body)

    def _size_line(self, data: bytes, start: int) -> int:
        line, start = self._read_line(data, start)
        if line is not None:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise BadRequest
            self._chunk_left = int(match[1], 16)
            if len(self._body) + self._chunk_left > self._bytes_max:
                raise BodyTooBig
            self._step = self._chunk_data if self._chunk_left else self._trailer
        return start

    def _chunk_data(self, data: bytes, start: int) -> int:
        end = min(start + self._chunk_left, len(data))
        self._body += data[start:end]
        self._chunk_left -= end - start
        if not self._chunk_left:
            self._step = self._chunk_end
        return end

    def _chunk_end(self, data: bytes, start: int) -> int:
        line, start = self._read_line(data, start)
        if line is not None:
            if line:
                raise BadRequest
            self._step = self._size_line
        return start

    def _trailer(self, data: bytes, start: int) -> int:
        line, start = self._read_line(data, start)
        if line is not None:
            self._trailer_bytes += len(line)
            is_trailer = _TRAILER_LINE.fullmatch(line) is not None
            if self._trailer_bytes > TRAILER_BYTES_MAX or not (is_trailer or not line):
                raise BadRequest
            self.done = not line
        return start

    def _read_line(self, data: bytes, start: int) -> tuple[bytes | None, int]:
        """The line that ends in `data`, without its CRLF, or None while it is not complete."""
        end = data.find(b"\n", start) + 1
        self._line += data[start : end or len(data)]
        if len(self._line) > LINE_BYTES_MAX:
            raise BadRequest
        if not end:
            return None, len(data)
        line = bytes(self._line)
        self._line.clear()
        if not line.endswith(b"\r\n"):
            raise BadRequest
        return line[:-2], end


Body = SizedBody | ChunkedBody
