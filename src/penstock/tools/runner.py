"""Consumers at work side by side, from their first message to a clean end, as every tool has them.

The first signal ends them cleanly: no more is asked for, and what is here is still worked on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import uvloop

from penstock.client import Consumer
from penstock.common.logs import Logger
from penstock.common.process import ignore_signals, stop_on_signals

__all__ = ["consume_all", "run_tool"]

Work = Callable[[Consumer], Awaitable[None]]


def run_tool(work: Callable[[asyncio.Event], Coroutine[Any, Any, int]], log: Logger) -> int:
    """Runs a tool to its end; `work` is given the event that a signal sets."""

    async def main() -> int:
        stop = asyncio.Event()
        stop_on_signals(stop, log)
        exit_code = await work(stop)
        ignore_signals()
        return exit_code

    with _telling_of_clients(log):
        return uvloop.run(main())


async def consume_all(
    consumers: Sequence[Consumer],
    work: Work,
    stop: asyncio.Event,
    *,
    leaving_seconds: float | None = None,
) -> None:
    """Start the consumers and run `work` for each. When one ends, or `stop` is set, all are
    stopped, and this returns when each has ended; work that still runs `leaving_seconds` after
    `stop` is cancelled. Raises the first error. As in NSQ's tools, a consumer waits for its
    nsqlookupds, while an nsqd that was given by address and cannot be reached is an error."""
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await consumer.start(wait_for_lookupd=True)
            stack.push_async_callback(consumer.close)
        tasks = [asyncio.ensure_future(work(consumer)) for consumer in consumers]
        stopped = asyncio.create_task(stop.wait())
        leaving = asyncio.create_task(_cancel_in_time(tasks, stop, leaving_seconds))
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            for consumer in consumers:
                consumer.stop()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            leaving.cancel()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


async def _cancel_in_time(
    tasks: Sequence[asyncio.Future[None]], stop: asyncio.Event, seconds: float | None
) -> None:
    await stop.wait()
    if seconds is not None:
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()


@contextmanager
def _telling_of_clients(log: Logger) -> Iterator[None]:
    """What producers and consumers have to say becomes lines of the tool's own log."""
    handler = _ToLogger(log)
    clients = logging.getLogger("penstock.client")
    clients.addHandler(handler)
    clients.setLevel(logging.DEBUG)  # the tool's own level decides
    clients.propagate = False
    try:
        yield
    finally:
        clients.removeHandler(handler)
        clients.propagate = True
        clients.setLevel(logging.NOTSET)


class _ToLogger(logging.Handler):
    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._write = {
            logging.DEBUG: log.debug,
            logging.INFO: log.info,
            logging.WARNING: log.warning,
            logging.ERROR: log.error,
        }

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            text += f": {record.exc_info[1]!r}"
        self._write[record.levelno]("%s", text)
