"""A handler at work on a consumer's messages: what `Consumer.run` does.

Each worker takes messages, calls the handler and answers for it. A coroutine function is called in
the loop, a plain function in the worker's own thread, where it may block.

Meanwhile one task goes round: it touches each message that it finds here for a second time, waiting
or being worked on. So no message times out while its consumer is alive, and none needs its own
timer.
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeAlias, cast

from penstock.client.config import ClientConfig
from penstock.client.handler_thread import HandlerThread, LoopCalls
from penstock.client.message import Message
from penstock.errors import ClientError, Error

__all__ = ["DeadLetter", "Handler", "Handling", "Source", "keep_touching"]

log = logging.getLogger("penstock.client")

Handler = Callable[[Message], Awaitable[None] | None]

DeadLetter = Callable[[Message, BaseException | None], Awaitable[None] | None]
"""Is given the message, and what the handler raised; None if it failed in another process."""

# A message is touched after between one and two rounds here, and must not time out before that.
ROUNDS_PER_TIMEOUT = 3

# Messages that are queued for threads at a time: as many as are handled in so many seconds.
QUEUED_SECONDS = 0.001
QUEUED_MAX = 256

_Outcome: TypeAlias = BaseException | Awaitable[None]
"""Of a handler: what it raised, or what is still to be awaited."""


class Source(Protocol):
    """Where messages come from: a consumer."""

    async def __anext__(self) -> Message: ...

    async def batch(self, count_max: int) -> list[Message]: ...

    @property
    def waiting(self) -> tuple[Message, ...]: ...

    async def wait_until_stopped(self) -> None: ...

    @property
    def msg_timeout(self) -> float: ...


class _Worker:
    """The message that a worker has in hand, and its thread, if it needs one."""

    __slots__ = ("message", "thread")

    def __init__(self) -> None:
        self.message: Message | None = None
        self.thread: HandlerThread | None = None


class Handling:
    """See the module's docstring. `handled` is told of every outcome, for backing off."""

    def __init__(
        self,
        source: Source,
        config: ClientConfig,
        handler: Handler,
        dead_letter: DeadLetter | None,
        handled: Callable[[bool], None],
    ) -> None:
        self._source = source
        self._config = config
        self._handler = handler
        self._dead_letter = dead_letter
        self._handled = handled
        self._workers: list[_Worker] = []
        self._calls = LoopCalls(asyncio.get_running_loop())
        # Messages for threads, which take them one by one.
        self._queue: deque[Message] = deque()
        self._queued_max = 1

    async def run(self, concurrency: int) -> None:
        """Returns when the source has ended and all is handled; raises bugs of ours."""
        work = self._work if _is_coroutine_function(self._handler) else self._work_in_thread
        self._workers = [_Worker() for _ in range(concurrency)]
        workers = {asyncio.create_task(work(worker)) for worker in self._workers}
        touching = asyncio.create_task(keep_touching(self._source, self._in_hand))
        stopped = asyncio.create_task(self._source.wait_until_stopped())
        try:
            await asyncio.wait({*workers, stopped}, return_when=asyncio.FIRST_COMPLETED)
            _, late = await asyncio.wait(
                workers, timeout=self._config.close_timeout, return_when=asyncio.FIRST_EXCEPTION
            )
            if late:
                log.warning("%d handlers did not end in time, and are cancelled", len(late))
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

    async def _work(self, worker: _Worker) -> None:
        handler = cast("Callable[[Message], Awaitable[None]]", self._handler)
        next_message, handled = self._source.__anext__, self._handled
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
                await self._failed(message, error)
            else:
                # Inline: this is done for each message.
                if not message.is_answered:
                    message.finish()
                handled(True)
            worker.message = None

    # A worker whose handler is a plain function.

    async def _work_in_thread(self, worker: _Worker) -> None:
        while messages := await self._source.batch(self._queued_max):
            for message in messages:
                message.make_thread_safe(self._calls.put)
            self._queue.extend(messages)
            while self._queue:
                await self._empty_queue(worker)

    async def _empty_queue(self, worker: _Worker) -> None:
        """Has the thread handle what is queued, until one message needs the loop."""
        if worker.thread is None:
            worker.thread = HandlerThread(self._calls)
        outcome = await worker.thread.call(self._handle_queued, worker)
        if worker.message is not None:
            if outcome is None:
                await self._give_up(worker.message, None)
            else:
                await self._conclude(worker.message, cast("_Outcome", outcome))
            worker.message = None

    def _handle_queued(self, worker: _Worker) -> "_Outcome | None":
        """In the thread: handles messages until there are none, or until one needs the loop, which
        then stays in hand. The result is what its handler raised, or an awaitable that it returned,
        or None if the message has been tried too often.

        The next time, more messages are queued if all were handled in a moment, and fewer if not:
        a change of threads costs more than a short handler, while messages that are queued behind a
        slow one might be handled by another worker.
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
            self._calls.put(self._succeeded, message)
        is_fast = time.monotonic() - began < QUEUED_SECONDS
        self._queued_max = min(2 * self._queued_max, QUEUED_MAX) if is_fast else 1
        return None

    # Outcomes.

    async def _conclude(self, message: Message, outcome: "_Outcome") -> None:
        """Answers for a handler that has failed in its thread, or is still to be awaited."""
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, Exception | asyncio.CancelledError):
                raise outcome  # SystemExit or KeyboardInterrupt
            await self._failed(message, outcome)
            return
        try:
            await outcome
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled():
                raise
            await self._failed(message, error)
        else:
            self._succeeded(message)

    def _succeeded(self, message: Message) -> None:
        if not message.is_answered:
            message.finish()
        self._handled(True)

    async def _failed(self, message: Message, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        log.error("handling %r failed: %s", message, reason, exc_info=_traceback_of(error))
        if self._config.max_attempts and message.attempts >= self._config.max_attempts:
            await self._give_up(message, error)
        else:
            _requeue(message, self._requeue_delay(message))
        self._handled(False)

    async def _give_up(self, message: Message, error: BaseException | None) -> None:
        if self._dead_letter is None:
            log.error("giving up on %r after %d attempts", message, message.attempts)
        else:
            try:
                await self._call_dead_letter(self._dead_letter, message, error)
            except Exception as failure:
                log.error(
                    "the dead letter %r was not taken: %s",
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
        """A plain function may block, like a handler; dead letters are rare enough for a thread of
        their own."""
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


async def keep_touching(source: Source, in_hand: Callable[[], Iterable[Message]]) -> None:
    """Touches what waits at the source or is in hand for long, until it is cancelled."""
    seen: set[Message] = set()
    while True:
        await asyncio.sleep(source.msg_timeout / ROUNDS_PER_TIMEOUT)
        held = {*source.waiting, *in_hand()}
        for message in held & seen:
            with suppress(ClientError):  # It is answered, maybe by a thread just now.
                message.touch()
        seen = held


def _requeue(message: Message, delay_seconds: float) -> None:
    with suppress(ClientError):  # It is answered, maybe by a thread just now.
        message.requeue(delay_seconds)


def _is_coroutine_function(function: object) -> bool:
    """Also for an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (not a test for being callable)
    )


def _traceback_of(error: BaseException) -> BaseException | None:
    """The error, to be logged with its traceback; None for errors of ours, whose text suffices."""
    return None if isinstance(error, Error) else error


def _is_cancelled() -> bool:
    """Whether it is we who are to end, and not something that the handler waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
