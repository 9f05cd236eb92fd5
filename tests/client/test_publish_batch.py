from collections.abc import Sequence
from typing import Any

import pytest

from penstock.client.publish_batch import PublishBatch, checked_body, split_into_batches
from penstock.protocol import commands


@pytest.mark.parametrize(
    ("size_max", "expected"),
    [
        (0, [[b"aa"], [b"bb"], [b"cccccc"], [b"d"]]),
        (16, [[b"aa", b"bb"], [b"cccccc"], [b"d"]]),
        (19, [[b"aa", b"bb"], [b"cccccc", b"d"]]),
        (1000, [[b"aa", b"bb", b"cccccc", b"d"]]),
    ],
)
def test_bodies_are_split_into_batches_that_fit(
    size_max: int, expected: list[Sequence[bytes]]
) -> None:
    assert expected == list(split_into_batches([b"aa", b"bb", b"cccccc", b"d"], size_max))


def test_no_bodies_make_no_batches() -> None:
    assert [] == list(split_into_batches([], 100))


def test_the_size_is_that_of_the_mpub_body() -> None:
    batch: PublishBatch[None] = PublishBatch("t")
    batch.add(b"one")
    batch.extend([b"two", b"three"])

    rendered = commands.mpub("t", [b"one", b"two", b"three"])
    assert rendered == batch.render()
    assert len(rendered) - len(b"MPUB t\n") - 4 == batch.size


def test_one_message_is_sent_by_pub_or_dpub() -> None:
    batch: PublishBatch[None] = PublishBatch("t")
    batch.add(b"one")
    deferred: PublishBatch[None] = PublishBatch("t", defer_ms=1500)
    deferred.add(b"one")

    assert commands.pub("t", b"one") == batch.render()
    assert commands.dpub("t", 1500, b"one") == deferred.render()


def test_it_is_split_if_each_message_has_its_waiter() -> None:
    batch: PublishBatch[str] = PublishBatch("t", deadline=5.0)
    batch.extend([b"one", b"two"])
    batch.waiters = ["first", "second"]

    parts = batch.split()

    assert [([b"one"], ["first"], 5.0), ([b"two"], ["second"], 5.0)] == [
        (part.bodies, part.waiters, part.deadline) for part in parts
    ]
    assert [] == parts[0].split()


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_any_bytes_like_object_is_a_body(body: Any) -> None:
    assert b"x" == checked_body(body)


@pytest.mark.parametrize(
    ("body", "error"), [("text", TypeError), (7, TypeError), (b"", ValueError)]
)
def test_an_invalid_body_is_refused(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_body(body)
