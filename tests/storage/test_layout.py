"""Names of files, and the text of issues."""

import pytest

from penstock.storage import layout
from penstock.storage.layout import Issue


def test_segment_names_sort_by_sequence_number() -> None:
    seqs = [0, 9, 10, 1_700_000_000_000_000, 2**54]

    assert seqs == [layout.maybe_segment_seq(layout.segment_name(seq)) for seq in seqs]
    assert sorted(map(layout.segment_name, seqs)) == list(map(layout.segment_name, seqs))


def test_similar_names_are_distinguished() -> None:
    assert 7 == layout.maybe_index_seq(layout.index_name(7))
    assert 7 == layout.maybe_generation(layout.cursors_name(7))
    assert None is layout.maybe_segment_seq(layout.index_name(7))
    assert None is layout.maybe_index_seq(layout.segment_name(7))
    assert None is layout.maybe_generation("cursors.bad")
    assert None is layout.maybe_generation("cursors.07")


@pytest.mark.parametrize(
    "name",
    [
        layout.segment_name(1),
        layout.segment_name(1) + layout.BAD_SUFFIX,
        layout.segment_name(1) + layout.NEW_SUFFIX,
        layout.index_name(1),
        layout.cursors_name(12),
        layout.CURSORS_BAD_NAME,
    ],
)
def test_is_topic_file(name: str) -> None:
    assert layout.is_topic_file(name)


@pytest.mark.parametrize("name", ["1.log", "notes.txt", "cursors", "cursors.x", "x" * 20 + ".log"])
def test_is_not_topic_file(name: str) -> None:
    assert not layout.is_topic_file(name)


@pytest.mark.parametrize(
    "name",
    [
        "orders.diskqueue.000001.dat",
        "orders:archive.diskqueue.meta.dat",
        "orders.diskqueue.000001.dat.bad",
    ],
)
def test_is_nsq_queue_file(name: str) -> None:
    assert layout.is_nsq_queue_file(name)


@pytest.mark.parametrize("name", ["nsqd.dat", "nsqd.123.dat", "topics", "penstock.format"])
def test_is_not_nsq_queue_file(name: str) -> None:
    assert not layout.is_nsq_queue_file(name)


def test_removal_number() -> None:
    assert 7 == layout.maybe_removal_number(layout.removed_name("orders", 7))
    assert layout.maybe_removal_number("orders") is None
    assert layout.maybe_removal_number(layout.removed_name("no topic", 1)) is None
    assert layout.maybe_removal_number("orders~removed-x") is None


@pytest.mark.parametrize(
    ("issue", "line"),
    [
        (Issue("f", "is odd", is_damage=True), "f: is odd"),
        (
            Issue("f", "is odd", is_damage=True, first_byte=10, end_byte=20),
            "f: is odd (bytes 10 to 19)",
        ),
        (
            Issue("f", "is odd", True, 10, 20, 5, 8),
            "f: is odd (bytes 10 to 19, messages 5 to 7)",
        ),
        (
            Issue("f", "is odd", is_damage=True, first_seq=5),
            "f: is odd (messages 5 and on)",
        ),
    ],
)
def test_text_of_an_issue(issue: Issue, line: str) -> None:
    assert line == str(issue)
