"""A stop request ends calls that block, and reaches callbacks that are registered late."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock.pipelines.stopping import (
    JobInterruptedError,
    Stop,
    raise_on_signals,
    stop_on_signals,
)


def test_a_stop_request_ends_a_blocking_block_with_one_error() -> None:
    stop, unblocked = Stop(), threading.Event()

    def block() -> None:
        assert unblocked.wait(60)
        raise ConnectionError("Java has been killed")

    threading.Timer(0, stop.ask).start()
    with pytest.raises(JobInterruptedError, match=r"^interrupted$"):  # noqa: SIM117
        with stop.interrupting(unblocked.set):
            block()


def test_a_callback_registered_after_the_request_is_called() -> None:
    stop, called = Stop(), threading.Event()
    stop.ask()

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
        assert not stop.is_asked

        os.kill(os.getpid(), number)
        assert stop.wait(60)


PROGRAM = """
import os, signal
from penstock.pipelines.stopping import stop_on_signals

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
