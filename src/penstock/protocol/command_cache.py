"""Lines of publishes that have passed every check, and what is read under them.

Producers send the same few lines over and over. Where one is met again, only the body behind it has
to be looked at.
"""

from struct import Struct

from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.events import Publish

__all__ = ["LINES_MAX", "NOTHING", "NO_LINE", "REMEMBERED_BYTES_MAX", "PublishLine", "PublishLines"]

# How many are remembered. All producers of a server may know thousands of topics between them; and
# a peer that names ever new ones shall not fill our memory.
LINES_MAX = 4096

# Nor one that adds to them what we ignore. Names and numbers need 102 bytes at the most.
REMEMBERED_BYTES_MAX = 128

_int32_at = Struct(">i").unpack_from
_INT32_BYTES = 4


class PublishLine:
    """The line of a PUB or DPUB."""

    __slots__ = ("_body_at", "_defer_ms", "_head_of", "_size_max", "_topic", "_word", "line")

    def __init__(self, line: bytes, topic: str, word: str, defer_ms: int, size_max: int) -> None:
        """`size_max` is what a message may have."""
        self.line = line
        head = Struct(f">{len(line)}si")
        self._head_of = head.unpack_from
        self._body_at = head.size
        self._topic = topic
        self._word = word
        self._defer_ms = defer_ms
        self._size_max = size_max

    def maybe_only(self, data: bytes) -> Publish | None:
        """The message, if `data` is this line, one good message under it, and no more."""
        body_at, head_of = self._body_at, self._head_of
        size = len(data) - body_at
        if 0 < size <= self._size_max and head_of(data) == (self.line, size):
            return Publish(self._topic, [data[body_at:]], 1, self._word, self._defer_ms)
        return None

    def maybe_run(self, buffer: ReceiveBuffer) -> Publish | None:
        """The messages that come next, as many as are complete and well-formed under this line."""
        data, end, stop = buffer.data, len(buffer.data), buffer.start
        line, body_at, size_max = self.line, self._body_at, self._size_max
        bodies: list[bytes] = []
        while data.startswith(line, stop) and (start := stop + body_at) <= end:
            size = _int32_at(data, start - _INT32_BYTES)[0]
            if not 0 < size <= size_max or start + size > end:
                break
            stop = start + size
            bodies.append(data[start:stop])
        if not bodies:
            return None
        buffer.start = stop
        return Publish(self._topic, bodies, len(bodies), self._word, self._defer_ms)


# Under these no message is good.
NO_LINE = PublishLine(b"", "", "", 0, size_max=0)
"""None has been met yet."""
NOTHING = PublishLine(b"", "", "", 0, size_max=0)
"""Whatever comes, it has to be looked at more closely."""


class PublishLines(dict[bytes, PublishLine]):
    """Those that have been met, by their bytes. One may serve all connections that have the same
    limits."""

    def remember(self, line: PublishLine) -> None:
        """It has passed every check; if there are too many, the oldest is forgotten."""
        if len(line.line) > REMEMBERED_BYTES_MAX:
            return
        if len(self) >= LINES_MAX:
            del self[next(iter(self))]
        self[line.line] = line
