"""Fixtures: an nsqd, and functions that run coroutines."""

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

# Shorter than pytest's timeout, so that a hanging test is cancelled and cleans up.
SECONDS_MAX = 240.0


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd("--msg-timeout=20s") as process:
        yield process


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine; once on asyncio's loop and once on uvloop."""
    return partial(_run, request.param)


@pytest.fixture
def run_once() -> Run:
    """Run a coroutine on one loop, for slow tests that do not depend on the loop."""
    return partial(_run, uvloop.new_event_loop)


def _run(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Coroutine[Any, Any, None]
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario, SECONDS_MAX))
