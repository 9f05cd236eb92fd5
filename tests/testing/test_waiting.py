"""Waiting by asking again."""

import pytest

from penstock.testing.waiting import wait_until


def test_first_true_answer_is_returned() -> None:
    answers = iter([0, "", None, "yes", "later"])

    assert "yes" == wait_until(lambda: next(answers), "an answer")


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.01 s in vain for the moon"):
        wait_until(lambda: False, "the moon", seconds=0.01)


def test_failure_of_the_probe_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, "nothing")
