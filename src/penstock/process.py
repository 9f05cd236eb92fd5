"""What every daemon asks of the system, whatever it serves: signals, open files, memory."""

import asyncio
import gc
import os
import resource
import signal
from contextlib import suppress

from penstock.logs import Logger

__all__ = ["ignore_signals", "raise_open_files_limit", "settle_memory", "stop_on_signals"]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A collection of the young generation after so many allocations; far more than the default, because
# a daemon's objects are few and long-lived, and what it passes on are not containers.
GC_THRESHOLDS = (50_000, 50, 100)


def stop_on_signals(stop: asyncio.Event, log: Logger) -> None:
    """The first signal stops cleanly, the second at once."""

    def on_signal(name: str) -> None:
        if stop.is_set():
            log.fatal("%s again, exiting without a clean stop", name)
            os._exit(1)
        log.info("%s, stopping", name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number.name)


def ignore_signals() -> None:
    """All is done: a signal that comes now must not call that an unclean stop."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, lambda: None)


def raise_open_files_limit() -> None:
    """Each connection is a file: take as many as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """What was made to start stays for good: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
