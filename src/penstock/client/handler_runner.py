"""Calls a handler for the messages of a consumer: the implementation of `Consumer.run`.

Each worker takes messages, calls the handler, and finishes or requeues them. A coroutine function
is called in the loop. A plain function is called in the worker's own thread, where it may block
while the loop answers heartbeats and touches messages. The threads are daemons: a function that
never returns does not prevent the process from exiting.

One task touches messages at intervals: each message, queued or with a handler, that was already
held at the last interval. So no message times out while its consumer is alive, and no message needs
its own timer.
"""

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol, TypeAlias, cast

from penstock.client.config import ClientConfig
from penstock.client.message import Message
from penstock.common.errors import ClientError, Error

__all__ = [
    "DeadLetter",
    "Handler",
    "HandlerRunner",
    "HandlerThread",
    "LoopCalls",
    "MessageSource",
    "keep_touching",
]

log = logging.getLogger("penstock.client")

Handler = Callable[[Message], Awaitable[None] | None]

DeadLetter = Callable[[Message, BaseException | None], Awaitable[None] | None]
"""Called with the message and the exception of the handler; None if it failed in another
process."""

# A message is touched after one to two rounds, and must not time out before that.
ROUNDS_PER_TIMEOUT = 3

# Messages are queued for threads in batches; a batch grows while it is handled in less than this.
QUEUED_SECONDS = 0.001
QUEUED_MAX = 256

_Outcome: TypeAlias = BaseException | Awaitable[None]
"""Outcome of a handler: the exception it raised, or the awaitable it returned."""


class MessageSource(Protocol):
    """The part of `Consumer` that `HandlerRunner` uses."""

    async def __anext__(self) -> Message: ...

    async def batch(self, count_max: int) -> list[Message]: ...

    @property
    def waiting(self) -> tuple[Message, ...]: ...

    @property
    def waiting_count(self) -> int: ...

    async def wait_until_stopped(self) -> None: ...

    @property
    def msg_timeout(self) -> float: ...


class _HandlerWorker:
    """A worker: the message it is handling, and its thread, if it needs one."""

    __slots__ = ("message", "thread")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.thread: HandlerThread | None = None


class HandlerRunner:
    """Runs the workers. Calls `on_handled` with the success of every message, for the backoff."""

    def __init__(
        self,
        source: MessageSource,
        config: ClientConfig,
        handler: Handler,
        dead_letter: DeadLetter | None,
        on_handled: Callable[[bool], None],
    ) -> None:
        self._source = source
        self._config = config
        self._handler = handler
        self._dead_letter = dead_letter
        self._on_handled = on_handled
        self._workers: list[_HandlerWorker] = []
        self._calls = LoopCalls(asyncio.get_running_loop())
        # Messages for threads, which take them one by one.
        self._queue: deque[Message] = deque()
        self._queued_max = 1

    async def run(self, concurrency: int) -> None:
        """Return when the source has ended and all messages are handled. Raises unexpected
        exceptions of the workers."""
        work = self._work if _is_coroutine_function(self._handler) else self._work_in_thread
        self._workers = [_HandlerWorker() for _ in range(concurrency)]
        workers = {asyncio.create_task(work(worker)) for worker in self._workers}
        touching = asyncio.create_task(keep_touching(self._source, self._in_hand))
        stopped = asyncio.create_task(self._source.wait_until_stopped())
        try:
            await asyncio.wait({*workers, stopped}, return_when=asyncio.FIRST_COMPLETED)
            _, late = await asyncio.wait(
                workers, timeout=self._config.close_timeout, return_when=asyncio.FIRST_EXCEPTION
            )
            if late:
                log.warning(
                    "cancelling %d handlers that are still running after close_timeout", len(late)
                )
        finally:
            for task in (*workers, touching, stopped):
                task.cancel()
            outcomes = await asyncio.gather(*workers, touching, stopped, return_exceptions=True)
            while self._queue:
                _requeue(self._queue.popleft(), 0)
            for message in self._in_hand():
                _requeue(message, 0)
            for worker in self._workers:
                if worker.thread is not None:
                    worker.thread.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    # A worker whose handler is a coroutine function.

    async def _work(self, worker: _HandlerWorker) -> None:
        handler = cast("Callable[[Message], Awaitable[None]]", self._handler)
        next_message, on_handled = self._source.__anext__, self._on_handled
        attempts_max = self._config.max_attempts or 0xFFFF
        while True:
            try:
                worker.message = message = await next_message()
            except StopAsyncIteration:
                return
            if message.attempts > attempts_max:
                await self._give_up(message, None)
                continue
            try:
                await handler(message)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                await self._on_failure(message, error)
            else:
                # Inline: this is done for each message.
                if not message.is_answered:
                    message.finish()
                on_handled(True)
            worker.message = None

    # A worker whose handler is a plain function.

    async def _work_in_thread(self, worker: _HandlerWorker) -> None:
        while messages := await self._source.batch(self._fair_share()):
            for message in messages:
                message.make_thread_safe(self._calls.put)
            self._queue.extend(messages)
            while self._queue:
                await self._empty_queue(worker)

    def _fair_share(self) -> int:
        """Maximum messages that one worker takes at a time: an equal share of the queued ones. With
        more, a slow handler would delay messages that idle workers could handle."""
        share = self._source.waiting_count // len(self._workers)
        return max(1, min(self._queued_max, share))

    async def _empty_queue(self, worker: _HandlerWorker) -> None:
        """Handles queued messages in the thread, until one message needs the loop."""
        if worker.thread is None:
            worker.thread = HandlerThread(self._calls)
        outcome = await worker.thread.call(self._handle_queued, worker)
        if worker.message is not None:
            if outcome is None:
                await self._give_up(worker.message, None)
            else:
                await self._apply_outcome(worker.message, cast("_Outcome", outcome))
            worker.message = None

    def _handle_queued(self, worker: _HandlerWorker) -> "_Outcome | None":
        """Runs in the thread. Handles messages until the queue is empty, or until one needs the
        loop; that one stays in `worker.message`. Returns the exception that its handler raised, or
        the awaitable that it returned, or None if the message has exceeded `max_attempts`.

        If all messages were handled within QUEUED_SECONDS, the next batch is twice as large, else
        it has one message: a thread switch costs more than a short handler, while messages queued
        behind a slow handler could be handled by another worker.
        """
        attempts_max = self._config.max_attempts or 0xFFFF
        began = time.monotonic()
        while self._queue:
            try:
                worker.message = message = self._queue.popleft()
            except IndexError:
                break  # Another thread was faster.
            if message.attempts > attempts_max:
                return None
            try:
                result = self._handler(message)
            except BaseException as error:  # noqa: BLE001 (it is raised in the loop)
                return error
            if result is not None and inspect.isawaitable(result):
                return result
            worker.message = None
            self._calls.put(self._on_success, message)
        is_fast = time.monotonic() - began < QUEUED_SECONDS
        self._queued_max = min(2 * self._queued_max, QUEUED_MAX) if is_fast else 1
        return None

    # Outcomes.

    async def _apply_outcome(self, message: Message, outcome: "_Outcome") -> None:
        """Completes a message whose handler raised in its thread, or returned an awaitable."""
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, Exception | asyncio.CancelledError):
                raise outcome  # SystemExit or KeyboardInterrupt
            await self._on_failure(message, outcome)
            return
        try:
            await outcome
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
            await self._on_failure(message, error)
        else:
            self._on_success(message)

    def _on_success(self, message: Message) -> None:
        if not message.is_answered:
            message.finish()
        self._on_handled(True)

    async def _on_failure(self, message: Message, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        log.error("handling %r failed: %s", message, reason, exc_info=_traceback_of(error))
        if self._config.max_attempts and message.attempts >= self._config.max_attempts:
            await self._give_up(message, error)
        else:
            _requeue(message, self._requeue_delay(message))
        self._on_handled(False)

    async def _give_up(self, message: Message, error: BaseException | None) -> None:
        if self._dead_letter is None:
            log.error("giving up on %r after %d attempts", message, message.attempts)
        else:
            try:
                await self._call_dead_letter(self._dead_letter, message, error)
            except Exception as failure:
                log.error(
                    "dead_letter failed for %r: %s",
                    message,
                    failure,
                    exc_info=_traceback_of(failure),
                )
                _requeue(message, self._requeue_delay(message))
                return
        if not message.is_answered:
            message.finish()

    async def _call_dead_letter(
        self, dead_letter: DeadLetter, message: Message, error: BaseException | None
    ) -> None:
        """Calls `dead_letter`; a plain function runs in a thread of its own, since it may block."""
        if _is_coroutine_function(dead_letter):
            pending = dead_letter(message, error)
        else:
            message.make_thread_safe(self._calls.put)
            pending = await asyncio.to_thread(dead_letter, message, error)
        if pending is not None:
            await pending

    def _requeue_delay(self, message: Message) -> float:
        config = self._config
        return min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)

    def _in_hand(self) -> list[Message]:
        in_hand = [worker.message for worker in self._workers]
        return [*tuple(self._queue), *(message for message in in_hand if message is not None)]


async def keep_touching(source: MessageSource, in_hand: Callable[[], Iterable[Message]]) -> None:
    """Touch the messages that are queued at the source or in hand, until cancelled."""
    seen: set[Message] = set()
    while True:
        await asyncio.sleep(source.msg_timeout / ROUNDS_PER_TIMEOUT)
        held = {*source.waiting, *in_hand()}
        for message in held & seen:
            with suppress(ClientError):  # Already answered, maybe by a thread just now.
                message.touch()
        seen = held


def _requeue(message: Message, delay_seconds: float) -> None:
    with suppress(ClientError):  # Already answered, maybe by a thread just now.
        message.requeue(delay_seconds)


def _is_coroutine_function(function: object) -> bool:
    """Whether this is a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (not a test for being callable)
    )


def _traceback_of(error: BaseException) -> BaseException | None:
    """The value of `exc_info` for a log line; None for errors of `penstock.common.errors`."""
    return None if isinstance(error, Error) else error


def _is_cancelled() -> bool:
    """Whether the worker itself is cancelled, not only a future that the handler awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
        self._functions.put(
            lambda: self._calls.put(_set_result, outcome, context.run(function, *args))
        )
        return await outcome

    def close(self) -> None:
        """Ends the thread after the current call. Does not wait."""
        self._functions.put(None)

    def _run(self) -> None:
        while (function := self._functions.get()) is not None:
            function()


def _set_result(outcome: asyncio.Future[object], result: object) -> None:
    if not outcome.done():
        outcome.set_result(result)
