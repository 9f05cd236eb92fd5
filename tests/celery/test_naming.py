"""Any name becomes one that NSQ allows, and no two the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.celery.naming import ephemeral, nsq_name
from penstock.common.names import is_ephemeral, is_valid


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("low-priority_v1.2", "low-priority_v1.2"),
        ("celery@web1.celery.pidbox", "celery-x40web1.celery.pidbox"),
        ("a-x40b", "a-x2dx40b"),
        ("ü", "-xc3-xbc"),
        ("orders#ephemeral", "orders-x23ephemeral"),
        ("q" * 65, "q" * 46 + "-h2b6c3f7f12b1b12f"),
    ],
)
def test_a_name_stays_legible(queue: str, topic: str) -> None:
    assert topic == nsq_name(queue)


@given(st.text(min_size=1, max_size=100))
def test_every_name_becomes_a_valid_one(name: str) -> None:
    assert is_valid(nsq_name(name))
    assert is_valid(ephemeral(name))
    assert is_ephemeral(ephemeral(name))


names = st.text(alphabet="-x4062d@a", min_size=1, max_size=12)


@given(names, names)
def test_two_names_never_become_the_same(one: str, other: str) -> None:
    assert (one == other) == (nsq_name(one) == nsq_name(other))
