"""Process settings of a daemon: signals, limit on open files, garbage collection."""

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
    "freeze_gc",
    "ignore_signals",
    "open_files_limit",
    "pause_gc",
    "raise_open_files_limit",
    "reload_on_hangup",
    "stop_on_signals",
]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)

# Far fewer collections than by default: a daemon has few, long-lived objects, and messages are not
# containers.
GC_THRESHOLDS = (50_000, 50, 100)


def stop_on_signals(stop: asyncio.Event, log: Logger) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; the second exits at once. SIGHUP (a closed
    terminal) also stops, unless it has a handler or is ignored by nohup."""

    was_signalled = False

    def on_signal(name: str) -> None:
        # Not `stop.is_set()`: a drained daemon sets it itself, and the first signal must not exit
        # at once.
        nonlocal was_signalled
        if was_signalled:
            log.fatal("%s again, exiting without a clean stop", name)
            os._exit(1)
        was_signalled = True
        log.info("%s, stopping", name)
        stop.set()

    for number in _STOP_SIGNALS:
        _call_once_for_each(number, partial(on_signal, number.name))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # Shell and kernel both send SIGHUP when a terminal is closed, so the second is ignored.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop.set)


def drain_on_sigterm(drain: Callable[[], None], stop: asyncio.Event, log: Logger) -> None:
    """Call `drain` at the first SIGTERM; the second stops cleanly, the third exits at once."""

    def on_signal() -> None:
        log.info("SIGTERM, draining; again to stop now")
        stop_on_signals(stop, log)
        drain()

    _call_once_for_each(signal.SIGTERM, on_signal)


def _call_once_for_each(number: signal.Signals, call: Callable[[], None]) -> None:
    """Call the handler once per signal. If two signals arrive together, uvloop may call a handler
    twice for one: directly, and when it reads its pipe. Excess calls are dropped."""
    received = handled = 0

    def on_signal() -> None:
        nonlocal handled
        if handled < received:
            handled += 1
            call()

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if callable(loops_own):
            loops_own(number, frame)

    loop, before = asyncio.get_running_loop(), signal.getsignal(number)
    loop.add_signal_handler(number, on_signal)
    loops_own = signal.getsignal(number)
    if loops_own is before:  # this loop does not use signal.signal and calls once
        loop.add_signal_handler(number, call)
    else:
        signal.signal(number, count)
        signal.siginterrupt(number, False)


def ignore_signals() -> None:
    """Ignore signals at the end of a clean stop, so that they cannot turn it into an unclean one.

    The handlers are removed from the loop, which would otherwise restore the default action when it
    is closed, while Python still runs.
    """
    loop = asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def reload_on_hangup(reloads: Mapping[str, Callable[[], None]], log: Logger) -> None:
    """Call all `reloads` at each SIGHUP. If one raises ConfigError, its old state remains."""

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
    """Raise the soft limit on open files to the hard one; each connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int:
    """The limit on open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def pause_gc() -> None:
    """Disable the garbage collector until `freeze_gc`. The start creates many long-lived objects;
    scanning them repeatedly would take most of the start time."""
    gc.disable()


def freeze_gc() -> None:
    """Enable the garbage collector, and exclude all objects created so far from scanning."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
