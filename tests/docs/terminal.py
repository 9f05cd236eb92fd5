"""Terminals on a machine, as somebody has them open who follows a page.

One shell runs the commands, one after the other, with all that shells keep: folder, variables,
jobs. A command that goes on until Ctrl-C gets a terminal of its own, and has to be ready before the
next one is typed; in the end all of them get their Ctrl-C.
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

COMMAND_SECONDS = 200.0  # Spark on a crowded machine takes long

# What goes on until Ctrl-C, and what it says when it is ready.
_GOES_ON = {
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
    """Close it to have everything stopped."""

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
        with ExitStack() as closing:  # whatever fails, the others are stopped, too
            closing.callback(_stop, self._shell, signal.SIGTERM)
            assert self._shell.stdin is not None
            closing.callback(self._shell.stdin.close)
            for running in self._others:
                closing.callback(_interrupt, running)

    def run(self, command: str, printed: str | None = None, *, goes_on: bool = False) -> str:
        """Runs a command, or starts it. Returns what it printed; fails if it fails, or prints
        something else than is said."""
        ready = "" if goes_on else _when_ready(command)
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
        print(f"$ {command}\n{output.read_text()}")  # `pytest -rP` shows it to who writes a page
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
        """Ends what is about to be started anew, if it runs, and before it what came after it."""
        programs = [_program(running.command) for running in self._others]
        while program in programs:
            _interrupt(self._others.pop())
            programs.pop()

    def _started(self, *command: str, stdin: int, output: Path) -> subprocess.Popen[bytes]:
        # Who enters a mount namespace leaves the folder.
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
        path.write_bytes(b"")  # of one before, maybe
        return path


def _program(command: str) -> list[str]:
    words = command.split()
    return words[:2] if words[0] == "penstock" else words[:1]


def _when_ready(command: str) -> str | None:
    """What a command says when it is ready, if it is one that goes on."""
    for pattern, words in _GOES_ON.items():
        if re.match(pattern, command):
            return words
    return "\n" if command.rstrip().endswith("&") else None


def _compare(command: str, shown: str, real: str) -> None:
    assert alike(shown, real), f"$ {command}\n{real}\nshould be, as the page has it:\n{shown}"


def _interrupt(running: _Running) -> None:
    """Ctrl-C, for what goes on until then."""
    ended = running.process.poll()
    _stop(running.process, signal.SIGINT)
    assert ended in (None, 0), f"{running.command} ended by itself, with {ended}"


def _stop(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """Stops a terminal with all that it has started."""
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
