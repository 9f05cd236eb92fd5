"""A tool that runs as a process during a test, with its log in a file."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.testing.waiting import wait_until

__all__ = ["ToolProcess", "tool_process"]

SECONDS = 120.0


class ToolProcess:
    """A running tool, started by `tool_process`."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def logs(self, text: str, *, count: int = 1) -> None:
        """Wait until the log contains the text the given number of times."""
        wait_until(lambda: self.log.count(text) >= count, f"{text!r} in the log")

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it cleanly."""
        self._process.send_signal(signal.SIGTERM)
        assert 0 == self.wait(), self.log

    def wait(self) -> int:
        """Wait until it exits; returns the exit code."""
        code = self._process.wait(SECONDS)
        assert "Traceback" not in self.log, self.log
        return code


@contextmanager
def tool_process(program: str, *args: str, prelude: str = "") -> Iterator[ToolProcess]:
    """Run a tool with these flags and with pipes; at the end of the block it is killed. `prelude`
    is Python code that runs in its process first.
    """
    code = f"{prelude}\nfrom penstock.cli.{program} import main\nraise SystemExit(main())"
    with tempfile.NamedTemporaryFile() as log_file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
        )
        with process:
            try:
                yield ToolProcess(process, Path(log_file.name))
            finally:
                process.kill()
