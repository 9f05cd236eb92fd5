"""Incremental parser of multi-publish bodies.

    [int32 body size][int32 count]([int32 size][message])*count

As in NSQ, the body size is range-checked and otherwise ignored: count and message sizes
determine the end of the body. HTTP's binary form has no body size.

`MultiBody` keeps the messages parsed so far, so that no byte is parsed twice, in whatever chunks
the body arrives. A complete body, the usual case, takes one tight loop.
"""

import struct
from struct import Struct

from penstock.common.errors import ProtocolError
from penstock.protocol.events import Limits

__all__ = ["MultiBody", "parse_mpub_body"]

_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT32_BYTES = 4


def parse_mpub_body(body: bytes, limits: Limits) -> list[bytes]:
    """The messages of a complete body without body size. Bytes after the last are ignored."""
    multi = MultiBody("MPUB", limits, sized=False)
    multi.read(body, 0)
    if multi.missing:
        raise multi.shortfall()
    return multi.bodies


class MultiBody:
    """Parser of one body; call `read` until `missing` is 0."""

    __slots__ = ("_awaits_size", "_bytes", "_command", "_left", "_limits", "bodies", "missing")

    def __init__(self, command: str, limits: Limits, *, sized: bool = True) -> None:
        self.bodies: list[bytes] = []
        # Number of unread bytes that the next step needs; 0 once the body is complete.
        self.missing = _INT32_BYTES
        self._command = command
        self._limits = limits
        self._awaits_size = sized
        self._left: int | None = None
        self._bytes = _INT32_BYTES

    def read(self, data: bytes, position: int) -> int:
        """Parse from `position` on; returns the position of the first unread byte."""
        if self._awaits_size:
            if len(data) - position < _INT32_BYTES:
                return position
            self._check_body_size(_INT32.unpack_from(data, position)[0])
            self._awaits_size = False
            position += _INT32_BYTES
        if self._left is None:
            if len(data) - position < _INT32_BYTES:
                return position
            self._left = self._checked_count(_INT32.unpack_from(data, position)[0])
            position += _INT32_BYTES
        return self._read_messages(data, position, self._left)

    def shortfall(self) -> ProtocolError:
        """The error to send if the stream ends here."""
        if self._awaits_size:
            return self._bad_body("failed to read body size")
        if self._left is None:
            return self._bad_body("failed to read message count")
        if self.missing == _INT32_BYTES:
            return self._bad_message(f"failed to read message({len(self.bodies)}) body size")
        return self._bad_message("failed to read message body")

    def _read_messages(self, data: bytes, position: int, left: int) -> int:
        begin = position
        fresh: list[bytes] = []
        add, unpack = fresh.append, _UINT32.unpack_from
        # Sizes are read as unsigned and checked together after the loop, which saves a check per
        # message: no size can move the position back, and one past the end stops the loop.
        try:
            for _ in range(left):
                start = position + _INT32_BYTES
                position = start + unpack(data, position)[0]
                add(data[start:position])
        except struct.error:
            pass
        if position > len(data):
            # The last slice was cut by the end of the data: that message is incomplete.
            position = len(data) - len(fresh.pop()) - _INT32_BYTES
        self._check_messages(fresh, position - begin)
        self.bodies += fresh
        self._bytes += position - begin
        self._left = left - len(fresh)
        self.missing = self._bytes_needed(data, position)
        return position

    def _bytes_needed(self, data: bytes, position: int) -> int:
        if self._left == 0:
            return 0
        if len(data) - position < _INT32_BYTES:
            return _INT32_BYTES
        size: int = _INT32.unpack_from(data, position)[0]
        self._check_message_size(len(self.bodies), size, self._bytes)
        return _INT32_BYTES + size

    def _check_messages(self, fresh: list[bytes], size: int) -> None:
        limits = self._limits
        if (
            all(fresh)
            and self._bytes + size <= limits.max_body_size
            and (size <= limits.max_msg_size or max(map(len, fresh)) <= limits.max_msg_size)
        ):
            return
        before = self._bytes
        for index, body in enumerate(fresh, start=len(self.bodies)):
            self._check_message_size(index, len(body), before)
            before += _INT32_BYTES + len(body)

    def _check_body_size(self, size: int) -> None:
        if size <= 0:
            raise self._bad_body(f"invalid body size {size}")
        if size > self._limits.max_body_size:
            raise self._bad_body(f"body too big {size} > {self._limits.max_body_size}")

    def _checked_count(self, count: int) -> int:
        if not 0 < count <= self._limits.max_messages:
            raise self._bad_body(f"invalid message count {count}")
        return count

    def _check_message_size(self, index: int, size: int, bytes_before: int) -> None:
        if size <= 0:
            raise self._bad_message(f"invalid message({index}) body size {size}")
        if size > self._limits.max_msg_size:
            raise self._bad_message(f"message too big {size} > {self._limits.max_msg_size}")
        # NSQ does not limit the sum of the message sizes. Here it must not exceed the
        # limit on the body size: otherwise one command could fill the memory.
        total = bytes_before + _INT32_BYTES + size
        if total > self._limits.max_body_size:
            raise self._bad_body(f"body too big {total} > {self._limits.max_body_size}")

    def _bad_body(self, detail: str) -> ProtocolError:
        return ProtocolError("E_BAD_BODY", f"{self._command} {detail}")

    def _bad_message(self, detail: str) -> ProtocolError:
        return ProtocolError("E_BAD_MESSAGE", f"{self._command} {detail}")
