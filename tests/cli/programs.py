"""Runs our programs in a pipe or on a terminal, as a user does."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.testing.waiting import wait_until

__all__ = [
    "TerminalProgram",
    "in_pipe",
    "on_terminal",
    "started",
    "unread_bytes",
    "wait_until_stuck",
]

SECONDS = 120.0
PIPE_BYTES = 4096  # the minimum size

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|\r")


def _command(program: str, args: Sequence[str], prelude: str = "") -> list[str]:
    if not prelude:
        return [sys.executable, "-m", f"penstock.cli.{program}", *args]
    code = f"{prelude}\nfrom penstock.cli.{program} import main\nraise SystemExit(main())"
    return [sys.executable, "-c", code, *args]


def in_pipe(
    program: str, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program until it exits."""
    done = subprocess.run(
        _command(program, args),
        input=stdin,
        capture_output=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, **(env or {})},
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@contextmanager
def started(program: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program with pipes during the block; at the end it is killed."""
    process = subprocess.Popen(
        _command(program, args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def unread_bytes(pipe: IO[bytes] | IO[str]) -> int:
    """Number of bytes in this pipe that were not read yet."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(count)


def wait_until_stuck(program: subprocess.Popen[str]) -> None:
    """Wait, without reading, until the program has filled a small pipe and blocks."""
    pipe = program.stdout
    assert pipe is not None
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def has_been_idle() -> bool:
        before = _cpu_ticks(program.pid)
        time.sleep(0.1)
        return unread_bytes(pipe) > PIPE_BYTES / 2 and before == _cpu_ticks(program.pid)

    wait_until(has_been_idle, "the pipe to be full")


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class TerminalProgram:
    """A program on a terminal; created by `on_terminal`."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self._process = process
        self._terminal = terminal
        self._seen = ""

    def see(self, text: str) -> str:
        """Wait until this text appears in the output since the last call; returns all output."""
        began, deadline = len(self._seen), time.monotonic() + SECONDS
        while text not in self._seen[began:]:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in time in:\n{self._seen[began:]}"
            if not self._read(left):
                raise AssertionError(f"it ended without {text!r}:\n{self._seen[began:]}")
        return self._seen

    def press(self, keys: str) -> None:
        """Type on its keyboard."""
        os.write(self._terminal, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal, and notify the program."""
        _set_size(self._terminal, columns, rows)
        self._process.send_signal(signal.SIGWINCH)

    def end(self) -> tuple[int, str]:
        """Wait until it exits; returns the exit code and all output."""
        while self._read(SECONDS):
            pass
        code = self._process.wait(SECONDS)
        assert "Traceback" not in self._seen, self._seen
        return code, self._seen

    @property
    def shows_what_is_typed(self) -> bool:
        """Whether the terminal echoes input, as a shell expects."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def _read(self, seconds: float) -> bool:
        """Read available output; returns whether there was some."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux: the program has closed its side
            return False
        self._seen += _ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)


@contextmanager
def on_terminal(
    program: str,
    *args: str,
    columns: int = 120,
    rows: int = 30,
    kind: str = "xterm-256color",
    prelude: str = "",
) -> Iterator[TerminalProgram]:
    """Run a program on a terminal of this size and kind; at the end of the block it is killed.
    `prelude` is Python code that runs in its process first.
    """
    ours, theirs = pty.openpty()
    _set_size(theirs, columns, rows)
    env = {**os.environ, "TERM": kind, "LC_ALL": "C.UTF-8"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen(
        _command(program, args, prelude),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
        # Nothing else runs here meanwhile; without this, Ctrl-C would be no signal.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(theirs)
    try:
        yield TerminalProgram(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
