"""Which outputs count as equal."""

import pytest
from tests.docs.outputs import alike, answers_alike


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("at 2026-11-16 03:10:14.920  one", "at 2031-01-02 23:59:59.001 one\n"),
        ("1794798614919625  x", "1894798614919999  x"),
        ("id 9a466058d7254c7b", "id 0046605c5de1c491"),
        ("took 0.31 s", "took 12.5 s"),
        ("up\n...\ndone", "up\nmany\nlines\ndone"),
        ("up\n...\ndone", "up\ndone"),
        ("...\ndone", "done"),
        ("up\n...", "up\nmany\nlines"),
        ("<Message ...>", "<Message b'x'>"),
    ],
)
def test_values_that_differ_between_runs_are_ignored(shown: str, real: str) -> None:
    assert alike(shown, real)


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("3 messages", "4 messages"),
        ("127.0.0.1:4150", "127.0.0.1:4151"),
        ("moved", "not moved"),
        ("one\ntwo", "one"),
        ("0.1.0 is up", "0.2.0 is up"),
    ],
)
def test_different_words_and_small_numbers_are_not_equal(shown: str, real: str) -> None:
    assert not alike(shown, real)


def test_answers_have_the_same_keys_and_types_of_values() -> None:
    assert answers_alike('{"a": 1}\n{"b": "x"}', '{"a": 7}\n{"b": "y"}')
    assert not answers_alike('{"a": 1}', '{"a": "1"}')
    assert not answers_alike('{"a": 1}', '{"a": 1, "b": 2}')
    assert not answers_alike('{"a": 1}', "")
