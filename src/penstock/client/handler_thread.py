"""Threads for handlers that are plain functions, so that they do not block the event loop.

    calls = LoopCalls(loop)
    thread = HandlerThread(calls)
    result = await thread.call(function, argument)

While a function blocks, the loop still answers heartbeats and touches messages. Threads are
daemons: a function that never returns does not prevent the process from exiting.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["HandlerThread", "LoopCalls"]


class LoopCalls:
    """A queue of calls from threads to the event loop, which runs them in order. Several calls
    share one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_scheduled = False

    def put(self, function: Callable[..., object], *args: object) -> None:
        """Queues a call. Thread-safe."""
        self._calls.append((function, args))
        # Checked after the append: if the flag is still set, the pending `_run` will find the call.
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        with suppress(RuntimeError):  # The loop is closed; the call is not needed.
            self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        try:
            while self._calls:
                function, args = self._calls.popleft()
                function(*args)
        finally:
            if self._calls:  # A call has raised, which the loop reports; run the others.
                self._schedule()


class HandlerThread:
    """A thread that runs one function at a time."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="penstock-handler", daemon=True).start()

    async def call(self, function: Callable[..., object], *args: object) -> object:
        """Calls the function in the thread, with the context variables of the caller, and returns
        its result. The function must not raise. Cancelling this does not stop the function."""
        outcome: asyncio.Future[object] = self._calls.loop.create_future()
        context = contextvars.copy_context()
        self._functions.put(lambda: self._calls.put(_settle, outcome, context.run(function, *args)))
        return await outcome

    def close(self) -> None:
        """Ends the thread after the current call. Does not wait."""
        self._functions.put(None)

    def _run(self) -> None:
        while (function := self._functions.get()) is not None:
            function()


def _settle(outcome: asyncio.Future[object], result: object) -> None:
    if not outcome.done():
        outcome.set_result(result)
