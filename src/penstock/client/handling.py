"""A handler at work on a consumer's messages: what `Consumer.run` does.

Each worker takes a message, calls the handler and answers for it. Meanwhile one task goes round:
what it finds here for a second time, waiting or being worked on, is touched, so that no message
times out while its consumer is alive, and none costs a timer of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from penstock.client.config import ClientConfig
from penstock.client.message import Message

__all__ = ["DeadLetter", "Handler", "Handling", "Source", "keep_touching"]

log = logging.getLogger("penstock.client")

Handler = Callable[[Message], Awaitable[None] | None]

DeadLetter = Callable[[Message, BaseException | None], Awaitable[None] | None]
"""Is given the message, and what the handler raised; None if it failed in another process."""

# A message is touched after between one and two rounds here, and must not time out before that.
ROUNDS_PER_TIMEOUT = 3


class Source(Protocol):
    """Where messages come from: a consumer."""

    async def __anext__(self) -> Message: ...

    @property
    def waiting(self) -> tuple[Message, ...]: ...

    async def wait_until_stopped(self) -> None: ...

    @property
    def msg_timeout(self) -> float: ...


class _Worker:
    """What one of the workers has in hand."""

    __slots__ = ("message",)

    def __init__(self) -> None:
        self.message: Message | None = None


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

    async def run(self, concurrency: int) -> None:
        """Returns when the source has ended and all is handled; raises bugs of ours."""
        self._workers = [_Worker() for _ in range(concurrency)]
        workers = {asyncio.create_task(self._work(worker)) for worker in self._workers}
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
            for message in self._in_hand():
                _requeue(message, 0)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    # A worker.

    async def _work(self, worker: _Worker) -> None:
        handler, next_message = self._handler, self._source.__anext__
        attempts_max = self._config.max_attempts or 0xFFFF
        handled = self._handled
        while True:
            try:
                worker.message = message = await next_message()
            except StopAsyncIteration:
                return
            if message.attempts > attempts_max:
                await self._give_up(message, None)
                continue
            try:
                pending = handler(message)
                if pending is not None:
                    await pending
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                await self._failed(message, error)
                handled(False)
            else:
                if not message.is_answered:
                    message.finish()
                handled(True)
            worker.message = None

    async def _failed(self, message: Message, error: BaseException) -> None:
        log.error("handling %r failed: %s: %s", message, type(error).__name__, error)
        log.debug("where it failed", exc_info=error)
        if self._config.max_attempts and message.attempts >= self._config.max_attempts:
            await self._give_up(message, error)
        else:
            _requeue(message, self._requeue_delay(message))

    async def _give_up(self, message: Message, error: BaseException | None) -> None:
        if self._dead_letter is None:
            log.error("giving up on %r after %d attempts", message, message.attempts)
        else:
            try:
                pending = self._dead_letter(message, error)
                if pending is not None:
                    await pending
            except Exception as failure:  # noqa: BLE001 (a hook may raise what it likes)
                log.error("the dead letter %r was not taken: %s", message, failure)
                _requeue(message, self._requeue_delay(message))
                return
        if not message.is_answered:
            message.finish()

    def _requeue_delay(self, message: Message) -> float:
        config = self._config
        return min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)

    def _in_hand(self) -> list[Message]:
        return [worker.message for worker in self._workers if worker.message is not None]


async def keep_touching(source: Source, in_hand: Callable[[], Iterable[Message]]) -> None:
    """Touches what waits at the source or is in hand for long, until it is cancelled."""
    seen: set[Message] = set()
    while True:
        await asyncio.sleep(source.msg_timeout / ROUNDS_PER_TIMEOUT)
        held = {*source.waiting, *in_hand()}
        for message in held & seen:
            if not message.is_answered:
                message.touch()
        seen = held


def _requeue(message: Message, delay_seconds: float) -> None:
    if not message.is_answered:
        message.requeue(delay_seconds)


def _is_cancelled() -> bool:
    """Whether it is we who are to end, and not something that the handler waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
