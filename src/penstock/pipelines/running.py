"""Running Spark queries, and stopping them on Ctrl-C or SIGTERM.

The signal handler only records the request: a KeyboardInterrupt in the middle of a call to Java
would leave the reply of that call to be read as the reply of the next one. To end a blocking call,
a job registers a callback that runs when the stop is requested.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from penstock.common.errors import PipelineError
from penstock.pipelines.progress import QueryMeter, QueryMetrics, progress_display
from penstock.pipelines.spark_errors import translate_spark_errors

__all__ = [
    "JobInterruptedError",
    "RunningQuery",
    "Stop",
    "raise_on_signals",
    "run_queries",
    "start_query",
    "stop_on_signals",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Interval at which queries are polled.
POLL_SECONDS = 0.5

# Interval at which a starting query is polled.
START_POLL_SECONDS = 0.1

START_ATTEMPTS = 10
_WORKER_TOO_SLOW = "Python worker failed to connect back"


class JobInterruptedError(PipelineError):
    """A stop was requested before the job was complete."""

    def __init__(self) -> None:
        super().__init__("interrupted")


class Stop:
    """A request to stop, and the callbacks that it triggers."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._interrupts: list[Callable[[], None]] = []
        self._kills: list[Callable[[], None]] = []

    @property
    def is_requested(self) -> bool:
        """Whether a stop has been requested."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a stop. May be called by a signal handler; takes no lock."""
        self._requested.set()
        for interrupt in list(self._interrupts):
            _run_in_thread(interrupt)

    def check(self) -> None:
        """Raise JobInterruptedError if a stop has been requested."""
        if self.is_requested:
            raise JobInterruptedError

    def wait(self, seconds: float) -> bool:
        """Wait for a stop request, at most this long; returns whether there is one."""
        return self._requested.wait(seconds)

    @contextmanager
    def calling(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` in a new thread when a stop is requested, or now if it already was.

        It may be called twice, so it must be idempotent.
        """
        self._interrupts.append(interrupt)
        try:
            if self.is_requested:
                _run_in_thread(interrupt)
            yield
        finally:
            self._interrupts.remove(interrupt)

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Like `calling`. After a stop request, the block ends with JobInterruptedError instead of
        the exception that `interrupt` causes in it."""
        with self.calling(interrupt):
            try:
                yield
            except Exception:
                self.check()
                raise
            self.check()

    @contextmanager
    def killing(self, kill: Callable[[], None]) -> Iterator[None]:
        """Call `kill` before the process exits on a second signal."""
        self._kills.append(kill)
        try:
            yield
        finally:
            self._kills.remove(kill)

    def exit_now(self) -> None:
        """End the process without any clean-up except the `killing` callbacks."""
        for kill in list(self._kills):
            kill()
        os._exit(1)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """The first Ctrl-C or SIGTERM requests a stop; a second one ends the process at once."""
    stop = Stop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stop.is_requested:
            stop.exit_now()
        stop.request()

    with _handling_signals(on_signal):
        yield stop


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt: for a block that reads input and does not call
    Java."""
    with _handling_signals(signal.default_int_handler):
        yield


@contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _run_in_thread(callback: Callable[[], None]) -> None:
    threading.Thread(target=callback, daemon=True).start()


# Queries.


class RunningQuery(NamedTuple):
    """A started query, and the meter of its progress."""

    query: StreamingQuery
    meter: QueryMeter


def start_query(start: Callable[[], StreamingQuery], stop: Stop) -> StreamingQuery:
    """Start a query and wait until it is initialised, so that queries start one after the other.

    Each source has a Python process, which Spark expects to start within ten seconds. On a busy
    machine this may fail; then the query is started again.
    """
    for _ in range(START_ATTEMPTS):
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            if stop.wait(START_POLL_SECONDS):
                return query
        if _WORKER_TOO_SLOW not in str(query.exception()):
            break
    return query


def run_queries(title: str, running: Sequence[RunningQuery], stop: Stop) -> list[QueryMetrics]:
    """Wait until all queries have ended or a stop is requested, and return their final metrics.

    A stop aborts the current batch; the next run repeats it. If a query fails, the others are
    stopped, and PipelineError is raised.
    """
    with translate_spark_errors():
        try:
            with progress_display(title) as show:
                while any(each.query.isActive for each in running):
                    for each in running:
                        _raise_failure(each.query)
                    show(_look(running))
                    if stop.wait(POLL_SECONDS):
                        break
        finally:
            for each in running:
                each.query.stop()
        if not stop.is_requested:
            for each in running:
                _raise_failure(each.query)
        return _look(running)


def _look(running: Sequence[RunningQuery]) -> list[QueryMetrics]:
    for query, meter in running:
        meter.observe(query.recentProgress)
    return [each.meter.metrics(time.monotonic()) for each in running]


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure
