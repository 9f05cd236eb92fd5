"""Fixtures with a running nsqlookupd."""

import re
import time
from collections.abc import Iterator

import pytest

from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    """Shared by the tests of a module that need no flags."""
    with run_nsqlookupd("--broadcast-address=lookup.example") as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that is unique to the test, so that tests can share an nsqlookupd."""
    words = re.sub(r"[^\w]+", "-", request.node.name.removeprefix("test_"))
    return f"{words[:40]}-{time.monotonic_ns() % 1_000_000}"
