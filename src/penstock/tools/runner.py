"""Runs a tool and its consumers until a signal stops them.

After the first signal, the consumers receive no more messages and process those already received.
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
    """Run a tool and return its exit code. `work` gets the event that a signal sets."""

    async def main() -> int:
        stop = asyncio.Event()
        stop_on_signals(stop, log)
        exit_code = await work(stop)
        ignore_signals()
        return exit_code

    with _client_logs_to(log):
        return uvloop.run(main())


async def consume_all(
    consumers: Sequence[Consumer],
    work: Work,
    stop: asyncio.Event,
    *,
    stop_seconds: float | None = None,
) -> None:
    """Start the consumers and run `work` for each. When one ends or `stop` is set, stop all and
    wait for them; work that still runs `stop_seconds` after `stop` is cancelled. Raises the first
    error. nsq compat: a consumer waits for its nsqlookupds, but an unreachable nsqd that was given
    by address is an error."""
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await consumer.start(wait_for_lookupd=True)
            stack.push_async_callback(consumer.close)
        tasks = [asyncio.ensure_future(work(consumer)) for consumer in consumers]
        stopped = asyncio.create_task(stop.wait())
        cancelling = asyncio.create_task(_cancel_after_timeout(tasks, stop, stop_seconds))
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            for consumer in consumers:
                consumer.stop()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            cancelling.cancel()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


async def _cancel_after_timeout(
    tasks: Sequence[asyncio.Future[None]], stop: asyncio.Event, seconds: float | None
) -> None:
    await stop.wait()
    if seconds is not None:
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()


@contextmanager
def _client_logs_to(log: Logger) -> Iterator[None]:
    """Write the log records of producers and consumers to the tool's log."""
    handler = _LoggerHandler(log)
    clients = logging.getLogger("penstock.client")
    clients.addHandler(handler)
    clients.setLevel(logging.DEBUG)  # the tool's log has its own level
    clients.propagate = False
    try:
        yield
    finally:
        clients.removeHandler(handler)
        clients.propagate = True
        clients.setLevel(logging.NOTSET)


class _LoggerHandler(logging.Handler):
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
