"""Cuts a stream into different pieces, which must all be parsed the same."""

from collections.abc import Iterator
from random import Random
from zlib import crc32

__all__ = ["Pieces", "cuttings"]

Pieces = list[bytes]

# Longer inputs are cut byte by byte only at the start, to save time.
BYTEWISE_MAX = 300
CUTS_MAX = 8


def cuttings(data: bytes) -> Iterator[Pieces]:
    """In one piece, then byte by byte, then at a few positions derived from the bytes."""
    yield [data]
    yield [*(data[at : at + 1] for at in range(len(data[:BYTEWISE_MAX]))), data[BYTEWISE_MAX:]]
    chance = Random(crc32(data))
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(1, CUTS_MAX)))
    yield [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
