"""Bytes to records: what stands between delimiters. Pure.

An empty record is none. The last record needs no delimiter, and is kept whole.
"""

from penstock.common.errors import Error

__all__ = ["RecordSplitter"]

# nsqd takes messages of 1 MiB unless it is told otherwise; what is far beyond is a wrong delimiter.
RECORD_BYTES_MAX = 256 << 20


class RecordSplitter:
    """Takes bytes as they come, and gives records as soon as they are whole."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._pieces: list[bytes] = []  # of the record that is not whole yet
        self._pieces_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The records that `data` ends. Raises Error if one has no end."""
        first, *others = data.split(self._delimiter)
        if not others:
            self._keep(first)
            return []
        records = [self._begun() + first, *others]
        self._keep(records.pop())
        return [record for record in records if record]

    def rest(self) -> list[bytes]:
        """The last record, if there is one."""
        return [record] if (record := self._begun()) else []

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > RECORD_BYTES_MAX:
            raise Error(f"no {self._delimiter!r} within {RECORD_BYTES_MAX} bytes")

    def _begun(self) -> bytes:
        begun = b"".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        return begun
