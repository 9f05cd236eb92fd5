"""Fast parsers for PUB, DPUB and FIN, which are nearly all that clients send.

Producers repeat the same few lines, such as `PUB orders`. A line that has passed all checks is kept
as a `PublishParser`; when it comes again, only the body after it is parsed. A run of FINs is
matched by one regular expression or by its length.
"""

import re
from struct import Struct

from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.events import Fin, Publish

__all__ = [
    "CACHED_LINE_BYTES_MAX",
    "FIN_PARSER",
    "LINES_MAX",
    "NO_LINE_YET",
    "NO_PARSER",
    "CommandCache",
    "FinParser",
    "PublishParser",
    "parse_fin_run",
]

# Maximum cached lines. The producers of one server may use thousands of topics; the limit bounds
# the memory that a client with ever new topics can take.
LINES_MAX = 4096

# Longer lines are not cached. A name and a number take at most 102 bytes; only ignored parameters
# make a line longer.
CACHED_LINE_BYTES_MAX = 128

_int32_at = Struct(">i").unpack_from
_INT32_BYTES = 4


class PublishParser:
    """Parses publishes that begin with one known PUB or DPUB line."""

    __slots__ = ("_body_at", "_command", "_defer_ms", "_head_of", "_size_max", "_topic", "line")

    def __init__(self, line: bytes, topic: str, command: str, defer_ms: int, size_max: int) -> None:
        """`size_max` is the maximum size of a message."""
        self.line = line
        head = Struct(f">{len(line)}si")
        self._head_of = head.unpack_from
        self._body_at = head.size
        self._topic = topic
        self._command = command
        self._defer_ms = defer_ms
        self._size_max = size_max

    def parse_single(self, data: bytes) -> Publish | None:
        """The publish; None unless `data` is exactly this line and one valid message."""
        body_at, head_of = self._body_at, self._head_of
        size = len(data) - body_at
        if 0 < size <= self._size_max and head_of(data) == (self.line, size):
            return Publish(self._topic, [data[body_at:]], 1, self._command, self._defer_ms)
        return None

    def parse_run(self, buffer: ReceiveBuffer) -> Publish | None:
        """Take consecutive publishes with this line from the start of the buffer, up to the first
        whose message is incomplete or invalid."""
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
        return Publish(self._topic, bodies, len(bodies), self._command, self._defer_ms)


# Sentinels that match nothing.
NO_LINE_YET = PublishParser(b"", "", "", 0, size_max=0)
"""The connection has not sent a PUB or DPUB."""
NO_PARSER = PublishParser(b"", "", "", 0, size_max=0)
"""Fast parsing is off: the next bytes need the general parser."""


class CommandCache(dict[bytes, PublishParser]):
    """Parsers of known PUB and DPUB lines, by line. Connections with the same limits share one."""

    def add(self, parser: PublishParser) -> None:
        """Add the parser of a line that has passed all checks; drops the oldest if full."""
        if len(parser.line) > CACHED_LINE_BYTES_MAX:
            return
        if len(self) >= LINES_MAX:
            del self[next(iter(self))]
        self[parser.line] = parser


# nsqd's message ids are lowercase hex; FINs with any other id take the general parser.
_FIN_RUN = re.compile(rb"(?:FIN [0-9a-f]{16}+\n)++")
_FIN_BYTES = len(b"FIN 0123456789abcdef\n")


class FinParser:
    """Parses FINs in a state in which FIN is allowed."""

    __slots__ = ()
    line = b"FIN "

    def parse_single(self, data: bytes) -> Fin | None:
        """The FINs in `data`; None if `data` contains anything but complete FINs."""
        if data[:4] != self.line:
            return None
        if len(data) == _FIN_BYTES and data.endswith(b"\n") and (only := data[4:20]).isalnum():
            return Fin([only])
        count, rest = divmod(len(data), _FIN_BYTES)
        if rest or data[_FIN_BYTES - 1 :: _FIN_BYTES] != b"\n" * count:
            return None
        ids = _split_fins(data)
        # If there are as many ids as newlines and every newline is at its place, then every id has
        # 16 bytes. Saves a check per id.
        return Fin(ids) if len(ids) == count and b"".join(ids).isalnum() else None


FIN_PARSER = FinParser()


def parse_fin_run(buffer: ReceiveBuffer) -> Fin | None:
    """The consecutive FINs at the start of the buffer."""
    run = _FIN_RUN.match(buffer.data, buffer.start)
    if run is None:
        return None
    buffer.start = run.end()
    return Fin(_split_fins(run[0]))


def _split_fins(run: bytes) -> list[bytes]:
    return run[len(b"FIN ") : -len(b"\n")].split(b"\nFIN ")
