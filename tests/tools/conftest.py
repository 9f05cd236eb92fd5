"""Fixtures: an nsqd."""

from collections.abc import Iterator

import pytest
from tests.nsqd.conftest import topic

from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["nsqd", "topic"]


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process
