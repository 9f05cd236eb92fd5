"""The terminals of a reader who follows a page.

One shell runs the commands one after the other and keeps its folder, variables and jobs. A command
that runs until Ctrl-C gets its own terminal and must be ready before the next command starts. At
the end, all of them get Ctrl-C.
"""

import os
import re
import signal
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.docs.machine import Machine
from tests.docs.outputs import alike

from penstock.testing.waiting import wait_until

__all__ = ["Terminal"]

COMMAND_SECONDS = 200.0  # Spark is slow on a busy machine

# Commands that run until Ctrl-C, and their output when they are ready.
_LONG_RUNNING = {
    r"penstock up\b": "Ctrl-C stops it.",
    r"nsqd\b": "HTTP: listening on",
    r"nsqlookupd\b": "HTTP: listening on",
    r"nsqadmin\b": "HTTP: listening on",
    r"celery .*\bworker\b": " ready.",
    r"uvicorn\b": "Uvicorn running",
    r"python .*worker\.py": "waiting for orders",
    r"penstock top(?!.*--once)": "CHANNEL",
    r"penstock sub(?!.*(-n|--count) )": "",
    r"nsq_stat(?!.*--count)": "ingress",
    r"nsq_tail|nsq_to_\w+|tail -F|curl .*follow=true": "",
}


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    command: str


@dataclass
class Terminal:
    """Runs commands. At the end of the block, all processes are stopped."""

    machine: Machine
    folder: Path
    environment: dict[str, str]
    scratch: Path
    _shell: subprocess.Popen[bytes] = field(init=False)
    _others: list[_Running] = field(init=False, default_factory=list)
    _count: int = field(init=False, default=0)

    def __enter__(self) -> Self:
        self._shell = self._started("bash", "--norc", stdin=subprocess.PIPE, output=self._file())
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:  # stops the others even if one fails
            closing.callback(_stop, self._shell, signal.SIGTERM)
            assert self._shell.stdin is not None
            closing.callback(self._shell.stdin.close)
            for running in self._others:
                closing.callback(_interrupt, running)

    def run(
        self, command: str, printed: str | None = None, *, is_long_running: bool = False
    ) -> str:
        """Run a command, or start it if it is long-running. Returns its output.

        Fails if the command fails or its output differs from `printed`.
        """
        ready = "" if is_long_running else _when_ready(command)
        if ready is not None and not command.rstrip().endswith("&"):
            return self._start(command, ready, printed)
        output, exit_code = self._file(), self._file()
        lines = f"{{\n{command}\n}} >{output} 2>&1 </dev/null\necho $? >{exit_code}\n"
        assert self._shell.stdin is not None
        self._shell.stdin.write(lines.encode())
        self._shell.stdin.flush()
        wait_until(lambda: exit_code.read_text().endswith("\n"), command, seconds=COMMAND_SECONDS)
        assert "0" == exit_code.read_text().strip(), f"{command}\n{output.read_text()}"
        if ready is not None:
            wait_until(lambda: ready in output.read_text(), command, seconds=COMMAND_SECONDS)
        print(f"$ {command}\n{output.read_text()}")  # shown by `pytest -rP`
        if printed is not None:
            _compare(command, printed, output.read_text())
        return output.read_text()

    def _start(self, command: str, ready: str, printed: str | None) -> str:
        self._leave(_program(command))
        output = self._file()
        process = self._started("bash", "-c", command, stdin=subprocess.DEVNULL, output=output)
        self._others.append(_Running(process, command))

        def is_ready() -> bool:
            said = output.read_text()
            assert process.poll() in (None, 0), f"{command}\n{said}"
            return ready in said and (printed is None or alike(printed, said))

        try:
            wait_until(is_ready, command, seconds=COMMAND_SECONDS)
        except AssertionError:
            _compare(command, printed or ready, output.read_text())
            raise
        return output.read_text()

    def _leave(self, program: list[str]) -> None:
        """Stop `program` if it is running, and all programs that were started after it."""
        programs = [_program(running.command) for running in self._others]
        while program in programs:
            _interrupt(self._others.pop())
            programs.pop()

    def _started(self, *command: str, stdin: int, output: Path) -> subprocess.Popen[bytes]:
        # nsenter changes the folder.
        there = ["env", "--chdir", str(self.folder), *command]
        with output.open("wb") as file:
            return subprocess.Popen(
                self.machine.inside(*there),
                env=self.environment,
                stdin=stdin,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _file(self) -> Path:
        self._count += 1
        path = self.scratch / f"{self._count}"
        path.write_bytes(b"")  # may exist from an earlier test
        return path


def _program(command: str) -> list[str]:
    words = command.split()
    return words[:2] if words[0] == "penstock" else words[:1]


def _when_ready(command: str) -> str | None:
    """Output of a long-running command when it is ready; None for other commands."""
    for pattern, words in _LONG_RUNNING.items():
        if re.match(pattern, command):
            return words
    return "\n" if command.rstrip().endswith("&") else None


def _compare(command: str, shown: str, real: str) -> None:
    assert alike(shown, real), f"$ {command}\n{real}\ndiffers from the page:\n{shown}"


def _interrupt(running: _Running) -> None:
    """Send Ctrl-C to a long-running command."""
    ended = running.process.poll()
    _stop(running.process, signal.SIGINT)
    assert ended in (None, 0), f"{running.command} exited by itself with code {ended}"


def _stop(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """Stop a shell with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
    try:
        process.wait(120)
        wait_until(lambda: not _is_there(process.pid), "jobs to end")
    except (AssertionError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
        raise


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
