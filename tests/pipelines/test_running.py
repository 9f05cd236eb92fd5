"""Starting queries, and stopping them on a signal."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipelines.running import (
    START_ATTEMPTS,
    JobInterruptedError,
    Stop,
    raise_on_signals,
    start_query,
    stop_on_signals,
)

TOO_SLOW = "java.io.IOException: Python worker failed to connect back."


class Query:
    """A fake query that failed with this message, or is running if the message is empty."""

    def __init__(self, failure: str = "") -> None:
        self._failure = failure
        self._steps = iter(["Initializing sources", "Processing new data"])

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        return not self._failure

    @property
    def status(self) -> dict[str, Any]:
        return {"message": next(self._steps)}

    def exception(self) -> str | None:
        return self._failure or None


def last_of(queries: Iterator[Query]) -> Query:
    def start() -> StreamingQuery:
        return cast("StreamingQuery", next(queries))

    return cast("Query", start_query(start, Stop()))


def test_a_query_is_restarted_if_its_python_worker_started_too_slowly() -> None:
    running = Query()

    assert running is last_of(iter([Query(TOO_SLOW), Query(TOO_SLOW), running]))


def test_a_query_that_failed_otherwise_is_not_restarted() -> None:
    failed = Query("there is no such column")

    assert failed is last_of(iter([failed, Query()]))


def test_the_number_of_restarts_is_limited() -> None:
    queries = [Query(TOO_SLOW) for _ in range(START_ATTEMPTS + 1)]

    assert queries[START_ATTEMPTS - 1] is last_of(iter(queries))


# Stopping.


def test_a_stop_request_ends_a_blocking_block_with_one_error() -> None:
    stop, unblocked = Stop(), threading.Event()

    def block() -> None:
        assert unblocked.wait(60)
        raise ConnectionError("Java has been killed")

    threading.Timer(0, stop.request).start()
    with pytest.raises(JobInterruptedError, match=r"^interrupted$"):  # noqa: SIM117
        with stop.interrupting(unblocked.set):
            block()


def test_a_callback_registered_after_the_request_is_called() -> None:
    stop, called = Stop(), threading.Event()
    stop.request()

    with stop.calling(called.set):
        assert called.wait(60)


def test_without_a_request_errors_are_unchanged() -> None:
    with pytest.raises(ConnectionError), Stop().interrupting(lambda: None):
        raise ConnectionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_request_a_stop_and_raise_only_while_input_is_read(number: int) -> None:
    with stop_on_signals() as stop:
        with pytest.raises(KeyboardInterrupt), raise_on_signals():
            os.kill(os.getpid(), number)
        assert not stop.is_requested

        os.kill(os.getpid(), number)
        assert stop.wait(60)


PROGRAM = """
import os, signal
from penstock.pipelines.running import stop_on_signals

with stop_on_signals() as stop, stop.killing(lambda: os.write(1, b"killed")):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""


def test_a_second_signal_kills_child_processes_and_exits() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=False
    )

    assert (1, b"killed", b"") == (ended.returncode, ended.stdout, ended.stderr)
