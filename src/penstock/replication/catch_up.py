"""Comparison of the segments of a leader and a follower when the follower connects. Pure.

An epoch has one writer, and a segment has one epoch. So two segments of a log with the same first
number and epoch agree up to the end of the shorter one, and only the lists have to be compared. A
segment that the leader does not have was either trimmed, or written by a leader that was replaced
before it could acknowledge its messages.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.replication.stream import SegmentState

__all__ = ["CatchUp", "compare_segments"]


class CatchUp(NamedTuple):
    """Differences between the leader's log and the follower's copy of it."""

    cuts: list[tuple[int, int]]
    """Segments whose bytes from a position on were never acknowledged: first number, position."""
    trimmed: list[int]
    """First numbers of the segments that the leader has trimmed."""
    present: dict[int, int]
    """How many bytes of each segment of the leader the follower has."""
    confirmed_seq: int
    """The follower has all messages of the leader below this number."""


def compare_segments(leader: Sequence[SegmentState], follower: Sequence[SegmentState]) -> CatchUp:
    """Compare the segments of one log. Both lists are sorted by first number."""
    of_leader = {each.first_seq: each for each in leader}
    cuts: list[tuple[int, int]] = []
    trimmed: list[int] = []
    matching: dict[int, SegmentState] = {}
    for each in follower:
        twin = of_leader.get(each.first_seq)
        if twin is not None and twin.epoch == each.epoch:
            matching[each.first_seq] = each
            if each.end > twin.end:
                cuts.append((each.first_seq, twin.end))
        elif _is_trimmed(each, leader):
            trimmed.append(each.first_seq)
        else:
            cuts.append((each.first_seq, 0))
    present = {
        each.first_seq: min(each.end, matching[each.first_seq].end)
        if each.first_seq in matching
        else 0
        for each in leader
    }
    return CatchUp(cuts, trimmed, present, _confirmed_seq(leader, matching))


def _is_trimmed(segment: SegmentState, leader: Sequence[SegmentState]) -> bool:
    """Whether the leader has trimmed a segment that the follower still has. The leader has never
    had the segment if it has other messages with these numbers, or if its log ends before them."""
    if not leader or segment.first_seq >= leader[-1].next_seq:
        return False
    return not any(
        each.first_seq < segment.next_seq and segment.first_seq < each.next_seq for each in leader
    )


def _confirmed_seq(leader: Sequence[SegmentState], matching: dict[int, SegmentState]) -> int:
    confirmed = leader[0].first_seq if leader else 0
    for each in leader:
        found = matching.get(each.first_seq)
        if found is None:
            break
        confirmed = min(found.next_seq, each.next_seq)
        if found.end < each.end:
            break
    return confirmed
