"""Output of the demo: headings, facts and progress.

Progress is one changing line on a terminal, and a line every few seconds otherwise.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from examples.shop.checks import Check
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["DemoConsole", "WaitTimeoutError"]

_Answer = TypeVar("_Answer")

LOOK_SECONDS = 0.5

# Minimum interval between two lines if the output is not a terminal.
LINE_SECONDS = 10.0


class WaitTimeoutError(Exception):
    """A condition was not met in time."""


class DemoConsole:
    """Prints the output of the demo."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def heading(self, title: str) -> None:
        """Print a heading with the elapsed time."""
        self._console.print(Text.assemble("\n", (title, "bold cyan"), (f"  {self.clock}", "dim")))

    @property
    def clock(self) -> str:
        """Elapsed time, such as `1:05`."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    def print_fact(self, fact: str, style: str = "") -> None:
        self._console.print(Text(f"  {fact}", style))

    def wait(
        self,
        probe: Callable[[], _Answer],
        what: str,
        *,
        seconds: float,
        progress: Callable[[], str] = str,
    ) -> _Answer:
        """Wait until `probe` returns a true value, and return it. Shows `what` and the progress.

        Raises WaitTimeoutError.
        """
        deadline = time.monotonic() + seconds
        with self._progress_printer() as tell:
            while not (answer := probe()):
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"timeout after {seconds:.0f} s: {what}: {progress()}")
                tell(f"{what}  {progress()}".rstrip())
                time.sleep(LOOK_SECONDS)
        return answer

    @contextmanager
    def _progress_printer(self) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows progress."""
        if self._console.is_terminal:
            with self._console.status("") as status:
                yield lambda line: status.update(Text(line, "dim"))
        else:
            yield _LinePrinter(self.print_fact)

    def summary(self, checks: Sequence[Check], notes: Sequence[str]) -> None:
        """Print a table of the checks, and notes."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        table.add_column("sent", justify="right")
        table.add_column("found", justify="right")
        table.add_column("")
        for check in checks:
            verdict = Text("equal", "green") if not check.fault else Text(check.fault, "bold red")
            table.add_row(check.what, check.expected, check.found, verdict)
        self._console.print(table)
        for remark in notes:
            self.print_fact(remark, "dim")


class _LinePrinter:
    """Prints a line every few seconds, if it has changed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = ""
        self._next_at = time.monotonic() + LINE_SECONDS

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self._next_at and line != self._last:
            self._next_at = time.monotonic() + LINE_SECONDS
            self._last = line
            self._tell(line)
