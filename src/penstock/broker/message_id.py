"""A message id is an address: the node in its top 10 bits, the sequence number in the other 54."""

from collections.abc import Sequence

from penstock.protocol import frames as wire

__all__ = ["id_number", "maybe_run", "seq_of", "seqs_of"]

_SEQ_BITS = 54
_SEQ_MASK = (1 << _SEQ_BITS) - 1


def id_number(node_id: int, seq: int) -> int:
    """The number whose 16 hex digits are the message's id."""
    return node_id << _SEQ_BITS | seq


def seq_of(message_id: bytes) -> int:
    """The sequence number of one of our own messages."""
    return int(message_id, 16) & _SEQ_MASK


def maybe_run(ids: Sequence[bytes]) -> tuple[int, int] | None:
    """The range that these ids, no two of them the same, fill without a gap; None if they do not.

    Nearly always they do, and then no id but the lowest and the highest has to be read.
    """
    # With their nodes, since a log that moves from node to node has ids of several.
    first, last = int(min(ids), 16), int(max(ids), 16)
    return (first & _SEQ_MASK, (last & _SEQ_MASK) + 1) if last - first == len(ids) - 1 else None


def seqs_of(ids: Sequence[bytes]) -> list[int]:
    """The sequence numbers of many."""
    return [number & _SEQ_MASK for number in wire.ids_to_ints(ids)]
