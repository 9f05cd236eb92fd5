"""Frames to put into a backlog, and what to look for in those that come out."""

from penstock.broker.message_id import id_number
from penstock.protocol import frames as wire

__all__ = ["WALL_NS", "attempts_of", "bodies_of", "frames_of", "ids_of", "ignore"]

WALL_NS = 1_700_000_000_000_000_000


def ignore(_due_ns: int = 0) -> None:
    """For tests in which it does not matter what comes due, or is finished."""


def frames_of(*bodies: str, first_seq: int = 1) -> list[bytes]:
    return wire.render_messages(
        [body.encode() for body in bodies], id_number(0, first_seq), WALL_NS
    )


def bodies_of(frames: list[bytes]) -> list[str]:
    return [wire.body(frame).decode() for frame in frames]


def attempts_of(frames: list[bytes]) -> list[int]:
    return [wire.attempts(frame) for frame in frames]


def ids_of(*seqs: int) -> list[bytes]:
    return [b"%016x" % id_number(0, seq) for seq in seqs]
