"""A full-screen view in the terminal that is refreshed at an interval.

    screen = LiveScreen(console, render, refresh, interval_seconds=2.0)
    await screen.run()

`refresh` fetches new data at each interval. `render` draws it after each refresh, key press and
change of the terminal's size. `q`, Ctrl-C and SIGTERM exit. The terminal is always restored.
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
    """The console if stdout is a terminal that supports a live view, else None."""
    if not sys.stdout.isatty():
        return None
    console = Console()
    return None if console.is_dumb_terminal else console


class LiveScreen:
    """The view; `on_key` gets every key except `q`."""

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
        """With `count`, exit after this many refreshes."""
        self._console = console
        self._render = render
        self._refresh = refresh
        self._interval_seconds = interval_seconds
        self._count = count
        self._on_key = on_key
        self._changed = asyncio.Event()
        self._is_exiting = False

    async def run(self) -> None:
        """Show the view until it is exited. Raises the exceptions of `refresh`."""
        refreshing = asyncio.create_task(self._refresh_at_intervals())
        refreshing.add_done_callback(lambda _: self._exit())
        try:
            # Signal handlers first, so that no signal leaves the terminal in the changed mode.
            with self._signals(), self._keys(), self._live() as live:
                while not self._is_exiting:
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

    async def _refresh_at_intervals(self) -> None:
        """Refresh at a steady interval, even if a refresh takes long."""
        loop = asyncio.get_running_loop()
        next_at, done = loop.time(), 0
        while self._count is None or done < self._count:
            next_at = max(next_at + self._interval_seconds, loop.time())
            await asyncio.sleep(next_at - loop.time())
            await self._refresh()
            self._changed.set()
            done += 1

    def _exit(self) -> None:
        self._is_exiting = True
        self._changed.set()

    # The terminal.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals. SIGWINCH: new size. SIGCONT: resumed after Ctrl-Z, so the terminal is in
        the shell's mode."""
        loop = asyncio.get_running_loop()
        actions = {
            signal.SIGINT: self._exit,
            signal.SIGTERM: self._exit,
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
        """Read single keys without echo, if stdin is a terminal."""
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
            self._exit()  # The terminal is closed, or the user exits.
            return
        if not keys.startswith(_ESCAPE):  # Arrow keys send an escape sequence with letters.
            for key in keys.decode("ascii", "ignore"):
                self._on_key(key)
        self._changed.set()

    def _resume(self) -> None:
        if sys.stdin.isatty():
            tty.setcbreak(sys.stdin.fileno())
        self._console.set_alt_screen(True)
        self._changed.set()
