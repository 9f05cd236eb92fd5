"""Buffer of received bytes that are not parsed yet.

A parser reads `data` from `start` on, moves `start` past the parsed bytes, and calls `want` if it
needs more bytes than there are. Until these have arrived, chunks are only collected: a large body
in many chunks is joined once. A chunk that arrives when the buffer is empty is not copied.
"""

from penstock.common.errors import ProtocolError

__all__ = ["ReceiveBuffer"]


class ReceiveBuffer:
    """Unparsed bytes: `data[start:]`, and the chunks received after them."""

    __slots__ = ("_later", "_missing", "data", "start")

    def __init__(self) -> None:
        self.data = b""
        self.start = 0
        self._later = bytearray()
        self._missing = 0

    def append(self, chunk: bytes) -> None:
        """Add a received chunk."""
        self._missing -= len(chunk)
        if self.start == len(self.data) and not self._later:
            self.data = chunk
            self.start = 0
        else:
            self._later += chunk

    def is_ready(self) -> bool:
        """Whether enough has arrived to parse on. If so, `data` contains all received bytes."""
        if self._missing > 0:
            return False
        self._missing = 0
        if self._later:
            self._join()
        return self.start < len(self.data)

    def is_empty(self) -> bool:
        """Whether all received bytes are parsed."""
        return self.start == len(self.data) and not self._later

    def want(self, size: int) -> None:
        """Make `is_ready` return False until there are `size` bytes from `start` on."""
        self._missing = size - (len(self.data) - self.start)

    def skip_magic(self, magic: bytes) -> bool:
        """Move past the magic number that begins a connection; False if it has not arrived
        completely. Raises ProtocolError if there are other bytes."""
        end = self.start + len(magic)
        if len(self.data) < end:
            self.want(len(magic))
            return False
        if self.data[self.start : end] != magic:
            raise ProtocolError("E_BAD_PROTOCOL")
        self.start = end
        return True

    def take_all(self) -> bytes:
        """Remove and return all unparsed bytes."""
        self._join()
        rest, self.data, self._missing = self.data, b"", 0
        return rest

    def clear(self) -> None:
        """Drop all unparsed bytes."""
        self.data, self._later = b"", bytearray()
        self.start = self._missing = 0

    def _join(self) -> None:
        self.data = self.data[self.start :] + self._later
        self.start = 0
        # A new bytearray: clear() would keep the memory of the old one.
        self._later = bytearray()
