"""Comparing the segments of leader and follower."""

from penstock.replication.catch_up import compare_segments
from penstock.replication.stream import SegmentState


def segment(first_seq: int, next_seq: int, epoch: int = 1) -> SegmentState:
    """Each message has 10 bytes."""
    return SegmentState(first_seq, epoch, (next_seq - first_seq) * 10, next_seq)


LEADER = [segment(100, 110), segment(110, 120), segment(120, 130, 2)]


def test_equal_copies() -> None:
    found = compare_segments(LEADER, LEADER)

    assert ([], [], {100: 100, 110: 100, 120: 100}, 130) == found


def test_empty_follower() -> None:
    assert ([], [], {100: 0, 110: 0, 120: 0}, 100) == compare_segments(LEADER, [])


def test_follower_lacks_the_end() -> None:
    found = compare_segments(LEADER, [segment(100, 110), segment(110, 115)])

    assert ([], [], {100: 100, 110: 50, 120: 0}, 115) == found


def test_follower_lacks_a_segment_in_the_middle() -> None:
    found = compare_segments(LEADER, [segment(100, 110), segment(120, 130, 2)])

    assert ([], [], {100: 100, 110: 0, 120: 100}, 110) == found


def test_former_leader_has_a_longer_segment() -> None:
    found = compare_segments(LEADER, [segment(100, 110), segment(110, 125)])

    assert ([(110, 100)], [], {100: 100, 110: 100, 120: 0}, 120) == found


def test_former_leader_has_a_segment_with_the_same_numbers_of_an_earlier_epoch() -> None:
    found = compare_segments(LEADER, [*LEADER[:2], segment(120, 140, 1)])

    assert ([(120, 0)], [], {100: 100, 110: 100, 120: 0}, 120) == found


def test_former_leader_has_a_segment_that_overlaps() -> None:
    found = compare_segments(LEADER, [*LEADER[:2], segment(121, 125, 1)])

    assert [(121, 0)] == found.cuts


def test_former_leader_has_a_segment_beyond_the_end() -> None:
    found = compare_segments(LEADER, [*LEADER, segment(130, 140, 2), segment(150, 160, 1)])

    assert [(130, 0), (150, 0)] == found.cuts


def test_trimmed_segments_are_not_cut() -> None:
    found = compare_segments([LEADER[0], LEADER[2]], [segment(50, 100), *LEADER])

    assert ([], [50, 110], {100: 100, 120: 100}, 130) == found


def test_leader_without_messages() -> None:
    assert ([(100, 0)], [], {}, 0) == compare_segments([], LEADER[:1])
