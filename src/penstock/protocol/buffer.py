"""Bytes that were received and are not parsed yet.

A reader looks at `data` from `start` on, moves `start` past what it has understood, and calls
`want` when what is there is not enough. Until that much has come, chunks only pile up: a large body
in many chunks is put together once, however many there are, and a chunk that arrives when all
before it is parsed is not copied at all.
"""

__all__ = ["ReceiveBuffer"]


class ReceiveBuffer:
    """What waits to be parsed, `data[start:]`, and what came after it."""

    __slots__ = ("_later", "_missing", "data", "start")

    def __init__(self) -> None:
        self.data = b""
        self.start = 0
        self._later = bytearray()
        self._missing = 0

    def append(self, chunk: bytes) -> None:
        """Add what was received."""
        self._missing -= len(chunk)
        if self.start == len(self.data) and not self._later:
            self.data = chunk
            self.start = 0
        else:
            self._later += chunk

    def is_ready(self) -> bool:
        """Whether there is something to parse; if so, `data` holds all of it."""
        if self._missing > 0:
            return False
        self._missing = 0
        if self._later:
            self._join()
        return self.start < len(self.data)

    def is_empty(self) -> bool:
        """Whether all that was received has been parsed."""
        return self.start == len(self.data) and not self._later

    def want(self, size: int) -> None:
        """Not to be ready before there are `size` bytes from `start` on."""
        self._missing = size - (len(self.data) - self.start)

    def take_all(self) -> bytes:
        """Everything that is not parsed; it is forgotten here."""
        self._join()
        rest, self.data, self._missing = self.data, b"", 0
        return rest

    def clear(self) -> None:
        """Drop all data that is not parsed."""
        self.data, self._later = b"", bytearray()
        self.start = self._missing = 0

    def _join(self) -> None:
        self.data = self.data[self.start :] + self._later
        self.start = 0
        # A new one, because clearing would keep the old one's memory for the connection's life.
        self._later = bytearray()
