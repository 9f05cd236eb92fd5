"""A bar that shows how much of so many bytes has been worked through, on a terminal."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["byte_bar"]

# What is done before anybody could have looked needs no bar.
BAR_FROM_BYTES = 4 << 20


def byte_bar(size_bytes: int | None) -> AbstractContextManager["Progress | None"]:
    """The bar, with one task, whose description stands behind it; None where it is not wanted."""
    if size_bytes is None or size_bytes < BAR_FROM_BYTES or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # noqa: PLC0415 (most work is short, and this takes long)
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}", style="dim"),
        TimeRemainingColumn(compact=True),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=size_bytes)
    return bar
