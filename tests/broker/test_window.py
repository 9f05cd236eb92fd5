"""A window gives out what was put in, in order, in pieces of any size."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.window import Window

PLENTY = 1 << 20


def window_of(*frames: bytes) -> Window:
    window = Window()
    window.extend(frames)
    return window


def test_what_came_first_is_taken_first() -> None:
    window = window_of(b"a", b"b", b"c")

    assert [b"a", b"b"] == window.take(2, PLENTY)
    assert 1 == len(window)
    assert [b"c"] == window.take(2, PLENTY)
    assert [] == window.take(2, PLENTY)


@pytest.mark.parametrize(
    ("bytes_max", "taken"), [(0, 1), (3, 1), (6, 2), (8, 2), (9, 3), (PLENTY, 3)]
)
def test_no_more_is_taken_than_fits_but_for_the_first(bytes_max: int, taken: int) -> None:
    window = window_of(b"aaa", b"bbb", b"ccc")

    assert taken == len(window.take(3, bytes_max))
    assert 3 - taken == len(window)


def test_what_was_taken_is_let_go_of() -> None:
    window = window_of(*[b"x"] * 5000)
    while len(window) > 1:
        window.take(1, PLENTY)

    assert len(window._frames) <= 1024


def test_large_ones_are_let_go_of_sooner() -> None:
    window = window_of(*[bytes(1 << 18)] * 100)
    while len(window) > 1:
        window.take(1, PLENTY)

        assert len(window._frames) - len(window) < 4


def test_a_cleared_one_is_empty() -> None:
    window = window_of(b"a", b"b")
    window.take(1, PLENTY)
    window.clear()

    assert (0, 0) == (len(window), window.size_bytes)
    assert [] == window.take(1, PLENTY)


@given(st.lists(st.integers(0, 3000), max_size=30), st.lists(st.integers(1, 2000), max_size=30))
def test_it_is_a_queue(puts: list[int], takes: list[int]) -> None:
    window, model = Window(), deque[bytes]()
    number = 0
    for put, take in zip(puts, takes, strict=False):
        frames = [b"%d" % index for index in range(number, number + put)]
        number += put
        window.extend(frames)
        model.extend(frames)
        expected = [model.popleft() for _ in range(min(take, len(model)))]

        assert expected == window.take(take, PLENTY)
        assert len(model) == len(window)
        assert sum(map(len, model)) == window.size_bytes
