"""Fixtures of tests with a running nsqd."""

import re
import time

import pytest


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that is unique to the test, so that tests can share an nsqd."""
    words = re.sub(r"[^\w]+", "-", request.node.name.removeprefix("test_"))
    return f"{words[:40]}-{time.monotonic_ns() % 1_000_000}"
