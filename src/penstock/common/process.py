"""What every daemon asks of the system, whatever it serves: signals, open files, memory."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType

from penstock.common.errors import ConfigError
from penstock.common.logs import Logger

__all__ = [
    "drain_on_sigterm",
    "ignore_signals",
    "open_files_limit",
    "pause_gc",
    "raise_open_files_limit",
    "reload_on_hangup",
    "settle_memory",
    "stop_on_signals",
]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)

# A collection of the young generation after so many allocations; far more than the default, because
# a daemon's objects are few and long-lived, and what it passes on are not containers.
GC_THRESHOLDS = (50_000, 50, 100)


def stop_on_signals(stop: asyncio.Event, log: Logger) -> None:
    """The first signal stops cleanly, the second at once. So does a terminal that is closed, unless
    SIGHUP has another meaning here, or none at all under nohup."""

    asked = False

    def on_signal(name: str) -> None:
        # Not `stop.is_set()`: what stops by itself, when it is drained, is not to be cut short by
        # the first signal.
        nonlocal asked
        if asked:
            log.fatal("%s again, exiting without a clean stop", name)
            os._exit(1)
        asked = True
        log.info("%s, stopping", name)
        stop.set()

    for number in _STOP_SIGNALS:
        _call_once_for_each(number, partial(on_signal, number.name))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # Shell and system both send one when a terminal is closed, so a second means nothing.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)


def drain_on_sigterm(drain: Callable[[], None], stop: asyncio.Event, log: Logger) -> None:
    """The first SIGTERM drains, the next stops cleanly, and one more at once."""

    def on_signal() -> None:
        log.info("SIGTERM, draining; again to stop now")
        stop_on_signals(stop, log)
        drain()

    _call_once_for_each(signal.SIGTERM, on_signal)


def _call_once_for_each(number: signal.Signals, call: Callable[[], None]) -> None:
    """Of a signal that comes close after another one, uvloop may tell twice: as soon as Python
    knows of it, and when it is read from a pipe. Only as many are passed on as Python has seen."""
    came = told = 0

    def on_signal() -> None:
        nonlocal told
        if told < came:
            told += 1
            call()

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if callable(loops_own):
            loops_own(number, frame)

    loop, before = asyncio.get_running_loop(), signal.getsignal(number)
    loop.add_signal_handler(number, on_signal)
    loops_own = signal.getsignal(number)
    if loops_own is before:  # a loop that has its signals from elsewhere tells of each once
        loop.add_signal_handler(number, call)
    else:
        signal.signal(number, count)
        signal.siginterrupt(number, False)


def ignore_signals() -> None:
    """All is done: a signal that comes now must not call that an unclean stop.

    They are taken from the loop, which would give them back their deadly default when it is closed,
    while Python still has its own end before it.
    """
    loop = asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def reload_on_hangup(reloads: Mapping[str, Callable[[], None]], log: Logger) -> None:
    """Reads these again at each SIGHUP; what cannot be read, by a ConfigError, stays as it was."""

    def on_hangup() -> None:
        for what, reload in reloads.items():
            try:
                reload()
            except ConfigError as error:
                log.error("SIGHUP, the old %s stay in use - %s", what, error)
            else:
                log.info("SIGHUP, %s reloaded", what)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)


def raise_open_files_limit() -> None:
    """Each connection is a file: take as many as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int:
    """How many files we may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def pause_gc() -> None:
    """Disables the garbage collector until `settle_memory`. The start creates many long-lived
    objects; scanning them again and again would take most of the start time."""
    gc.disable()


def settle_memory() -> None:
    """What was made to start stays for good: the garbage collector need not look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
