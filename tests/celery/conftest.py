"""Fixtures: an nsqd, and kombu connections to it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kombu import Connection
from tests.nsqd.conftest import topic

from penstock.celery.transport import Transport
from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["connect", "nsqd", "topic"]

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd("--msg-timeout=10s", "--max-req-timeout=1m") as process:
        yield process


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that makes connections with kombu's arguments. They are closed after the test."""
    with ExitStack() as stack:

        def make(url: str, **options: Any) -> Any:
            return stack.enter_context(Connection(url, transport=Transport, **options))

        yield make
