"""A view that fills the terminal and is kept up to date, until its user has seen enough.

    screen = LiveScreen(console, render, refresh, interval_seconds=2.0)
    await screen.run()

`refresh` gets new figures, every so often; `render` makes a picture of the latest, whenever there
are new ones, a key was pressed or the terminal has another size. `q`, Ctrl-C and SIGTERM leave; the
terminal is as it was before then, whatever happens.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live

__all__ = ["LiveScreen", "maybe_live_console"]

_KEY_BYTES_MAX = 64
_ESCAPE = b"\x1b"


def maybe_live_console() -> Console | None:
    """The terminal that stdout is, if it is one that pictures can be shown on."""
    if not sys.stdout.isatty():
        return None
    console = Console()
    return None if console.is_dumb_terminal else console


class LiveScreen:
    """See the module's docstring."""

    def __init__(
        self,
        console: Console,
        render: Callable[[], RenderableType],
        refresh: Callable[[], Awaitable[None]],
        *,
        interval_seconds: float,
        count: int | None = None,
        on_key: Callable[[str], None] = lambda _key: None,
    ) -> None:
        """With `count`, it leaves by itself after so many refreshes."""
        self._console = console
        self._render = render
        self._refresh = refresh
        self._interval_seconds = interval_seconds
        self._count = count
        self._on_key = on_key
        self._changed = asyncio.Event()
        self._leaving = False

    async def run(self) -> None:
        """Shows it. What `refresh` raises ends the view, and is raised."""
        refreshing = asyncio.create_task(self._go_on_refreshing())
        refreshing.add_done_callback(lambda _: self._leave())
        try:
            # Signals first, so that none finds the terminal changed and ends us like that.
            with self._signals(), self._keys(), self._live() as live:
                while not self._leaving:
                    live.update(self._render(), refresh=True)
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing

    def _live(self) -> Live:
        return Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    async def _go_on_refreshing(self) -> None:
        """At a steady pace, also when an answer takes its time."""
        loop = asyncio.get_running_loop()
        next_at, done = loop.time(), 0
        while self._count is None or done < self._count:
            next_at = max(next_at + self._interval_seconds, loop.time())
            await asyncio.sleep(next_at - loop.time())
            await self._refresh()
            self._changed.set()
            done += 1

    def _leave(self) -> None:
        self._leaving = True
        self._changed.set()

    # The terminal.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGWINCH: another size. SIGCONT: we are back from Ctrl-Z, and so is the shell's mode."""
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGINT: self._leave,
            signal.SIGTERM: self._leave,
            signal.SIGWINCH: self._changed.set,
            signal.SIGCONT: self._resume,
        }
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
        try:
            yield
        finally:
            for number in actions:
                loop.remove_signal_handler(number)

    @contextmanager
    def _keys(self) -> Iterator[None]:
        """Keys come one by one and are not shown, if there is a keyboard."""
        if not sys.stdin.isatty():
            yield
            return
        keyboard = sys.stdin.fileno()
        loop, before = asyncio.get_running_loop(), termios.tcgetattr(keyboard)
        tty.setcbreak(keyboard)
        loop.add_reader(keyboard, self._read_keys, keyboard)
        try:
            yield
        finally:
            loop.remove_reader(keyboard)
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    def _read_keys(self, keyboard: int) -> None:
        try:
            keys = os.read(keyboard, _KEY_BYTES_MAX)
        except OSError:
            keys = b""
        if not keys or b"q" in keys or b"Q" in keys:
            self._leave()  # The terminal is gone, or is wanted back.
            return
        if not keys.startswith(_ESCAPE):  # Arrows and their like are letters too, but later on.
            for key in keys.decode("ascii", "ignore"):
                self._on_key(key)
        self._changed.set()

    def _resume(self) -> None:
        if sys.stdin.isatty():
            tty.setcbreak(sys.stdin.fileno())
        self._console.set_alt_screen(True)
        self._changed.set()
