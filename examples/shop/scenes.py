"""How the demo speaks: scenes, facts, and what is being waited for.

On a terminal, what goes on is one line that changes; in a pipe, a line now and then, so that a log
can be read afterwards.
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

__all__ = ["InVain", "Stage"]

_Answer = TypeVar("_Answer")

LOOK_SECONDS = 0.5

# Between two lines in a pipe.
LINE_SECONDS = 10.0


class InVain(Exception):
    """What was waited for did not come in time."""


class Stage:
    """Where it is all told."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def scene(self, title: str) -> None:
        """Announces what comes next, and when."""
        self._console.print(Text.assemble("\n", (title, "bold cyan"), (f"  {self.clock}", "dim")))

    @property
    def clock(self) -> str:
        """How long it has been going on: `1:05`."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    def tell(self, fact: str, style: str = "") -> None:
        """Says what has happened."""
        self._console.print(Text(f"  {fact}", style))

    def wait(
        self,
        probe: Callable[[], _Answer],
        what: str,
        *,
        seconds: float,
        progress: Callable[[], str] = str,
    ) -> _Answer:
        """The first true answer of `probe`, and meanwhile what is waited for, and how far that is.

        Raises InVain.
        """
        deadline = time.monotonic() + seconds
        with self._telling() as tell:
            while not (answer := probe()):
                if time.monotonic() > deadline:
                    raise InVain(f"waited {seconds:.0f} s in vain for {what}: {progress()}")
                tell(f"{what}  {progress()}".rstrip())
                time.sleep(LOOK_SECONDS)
        return answer

    @contextmanager
    def _telling(self) -> Iterator[Callable[[str], None]]:
        """A function that tells how far something is."""
        if self._console.is_terminal:
            with self._console.status("") as status:
                yield lambda line: status.update(Text(line, "dim"))
        else:
            yield _NowAndThen(self.tell)

    def summary(self, checks: Sequence[Check], remarks: Sequence[str]) -> None:
        """What has been checked, and whether it holds."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        table.add_column("sent", justify="right")
        table.add_column("found", justify="right")
        table.add_column("")
        for check in checks:
            verdict = Text("equal", "green") if not check.fault else Text(check.fault, "bold red")
            table.add_row(check.what, check.expected, check.found, verdict)
        self._console.print(table)
        for remark in remarks:
            self.tell(remark, "dim")


class _NowAndThen:
    """A line every few seconds, unless it is the same as the last."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = ""
        self._next_at = time.monotonic() + LINE_SECONDS

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self._next_at and line != self._last:
            self._next_at = time.monotonic() + LINE_SECONDS
            self._last = line
            self._tell(line)
