"""Exit by a signal that arrives while a callback of the event loop runs."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys
from penstock.cli.interrupts import exit_on_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started under

def work():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    print("done")

async def main():
    asyncio.get_running_loop().call_soon(work)
    try:
        await asyncio.sleep(20)
    finally:
        print("left")

with exit_on_signals():
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_sigterm_does_not_raise_inside_the_event_loop(number: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, number],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (0, "done\nleft\n", "") == (ended.returncode, ended.stdout, ended.stderr)
