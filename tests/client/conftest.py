"""What the tests of the client share: an nsqd, a topic of one's own, and an event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.nsqd.conftest import topic

from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["nsqd", "run", "run_once", "topic"]

Run = Callable[[Coroutine[Any, Any, None]], None]

# Shorter than pytest's own timeout, so that a test that hangs is cancelled and cleans up.
SECONDS_MAX = 240.0


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd("--msg-timeout=20s") as process:
        yield process


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, on either loop."""
    return partial(_run, request.param)


@pytest.fixture
def run_once() -> Run:
    """For what takes its time, and does not depend on the loop."""
    return partial(_run, uvloop.new_event_loop)


def _run(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Coroutine[Any, Any, None]
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario, SECONDS_MAX))
