"""Message ids: the node id in the top 10 bits, the sequence number in the other 54."""

from collections.abc import Sequence

from penstock.protocol import frames as wire

__all__ = ["id_number", "maybe_run", "seq_of", "seqs_of"]

_SEQ_BITS = 54
_SEQ_MASK = (1 << _SEQ_BITS) - 1


def id_number(node_id: int, seq: int) -> int:
    """The number whose 16 hex digits are the message's id."""
    return node_id << _SEQ_BITS | seq


def seq_of(message_id: bytes) -> int:
    """The sequence number in a message id."""
    return int(message_id, 16) & _SEQ_MASK


def maybe_run(ids: Sequence[bytes]) -> tuple[int, int] | None:
    """The range `(first, end)` of distinct ids that are consecutive; None if they are not.

    Usually they are, and then only the lowest and the highest id have to be parsed.
    """
    # Including the node ids: a log that was moved between nodes has ids of several nodes.
    first, last = int(min(ids), 16), int(max(ids), 16)
    return (first & _SEQ_MASK, (last & _SEQ_MASK) + 1) if last - first == len(ids) - 1 else None


def seqs_of(ids: Sequence[bytes]) -> list[int]:
    """The sequence numbers in message ids."""
    return [number & _SEQ_MASK for number in wire.ids_to_ints(ids)]
