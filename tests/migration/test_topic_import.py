"""Queues are merged by time and keep their order; equal heads become one message."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.migration.queue_files import QueueRecord
from penstock.migration.topic_import import merge_queues

QUEUES = st.dictionaries(
    st.sampled_from("abcd"),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1))),
    max_size=4,
)


def records(numbers: Sequence[tuple[int, int]]) -> list[QueueRecord]:
    return [QueueRecord(number, attempts, b"%016x" % number, b"") for number, attempts in numbers]


@given(numbers=QUEUES, ranges_max=st.integers(0, 20))
def test_every_queue_keeps_its_order(
    numbers: dict[str, list[tuple[int, int]]], ranges_max: int
) -> None:
    queues = {channel: records(each) for channel, each in numbers.items()}
    out = list(
        merge_queues({channel: iter(queue) for channel, queue in queues.items()}, ranges_max)
    )

    assert queues == {
        channel: [record for channels, record in out if channel in channels] for channel in queues
    }


def test_a_message_of_all_queues_is_stored_once() -> None:
    behind, ahead = records([(n, 0) for n in range(9)]), records([(n, 0) for n in range(6, 9)])
    out = list(merge_queues({"behind": iter(behind), "ahead": iter(ahead)}))

    assert behind == [record for _, record in out]
    assert [("behind",)] * 6 + [("behind", "ahead")] * 3 == [channels for channels, _ in out]


def test_queues_that_alternate_too_often_are_stored_one_after_the_other() -> None:
    even, odd = ([(n, 0) for n in range(start, 10, 2)] for start in (0, 1))
    out = merge_queues({"even": iter(records(even)), "odd": iter(records(odd))}, ranges_max=6)

    assert [0, 1, 2, 3, 5, 7, 9, 4, 6, 8] == [record.timestamp_ns for _, record in out]
