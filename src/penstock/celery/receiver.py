"""Consuming for kombu, in a thread of its own.

The thread runs an event loop with a consumer for every queue that is listened to. So heartbeats are
answered, lost connections made again and messages touched whatever the thread that kombu works in
is busy with. The two meet in the `Inbox`, and in calls that the one leaves for the other; all other
state belongs to the thread of the loop.

A message is *held* from its delivery to its answer, and touched meanwhile. If nsqd delivers it
again while it is held here (its connection was lost, or it was held for longer than nsqd allows),
the new delivery takes the place of the old, and no task runs twice.
"""

import asyncio
import base64
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from kombu.utils.json import loads

from penstock.celery.deferral import seconds_until_due
from penstock.celery.inbox import Delivery, Inbox
from penstock.celery.settings import Settings
from penstock.client import Consumer, Message
from penstock.client.blocking.lookup import look_up
from penstock.client.discovery import ALL_NODES
from penstock.common.errors import ClientClosedError

__all__ = ["Receiver"]

log = logging.getLogger("penstock.celery")

T = TypeVar("T")

# What a prefetch without limit asks for: as much as an nsqd gives (its --max-rdy-count).
IN_FLIGHT_MAX = 2500

# A task that comes sooner than this before it is due is not worth another way to nsqd and back.
EARLY_SECONDS = 1.0

CLOSE_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class _Subscription:
    """A queue's consumer of one topic, and the messages it has brought that are not answered."""

    queue: str
    consumer: Consumer
    since_ns: int
    """What was published before is of no interest."""
    held: dict[int, Message] = field(default_factory=dict)
    tags: dict[tuple[str, bytes], int] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    is_cancelled: bool = False


class Receiver:
    """Listens to queues. The thread starts with the first of them."""

    def __init__(self, settings: Settings) -> None:
        self.inbox = Inbox()
        self._settings = settings
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._calls: deque[Callable[[], None]] = deque()
        self._calls_are_due = False
        self._tags = itertools.count(1)
        self._subscriptions: dict[tuple[str, str], _Subscription] = {}
        self._holders: dict[int, _Subscription] = {}
        self._endings: set[asyncio.Task[None]] = set()
        _receivers.add(self)

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Has the thread do this, and returns what comes of it. Raises ClientClosedError."""
        with self._lock:  # what is begun before `close` is ended by the loop's end
            try:
                outcome = asyncio.run_coroutine_threadsafe(doing, self._started_loop())
            except ClientClosedError:
                doing.close()
                raise
        try:
            return outcome.result()
        except CancelledError:
            raise ClientClosedError("the connection was closed meanwhile") from None

    def close(self) -> None:
        """Gives back what is not answered, and disconnects."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._thread.join(CLOSE_SECONDS)
        self.inbox.close()

    def abandon(self) -> None:
        """After a fork, in the child: lets go of what belongs to the parent.

        The sockets are overwritten and not closed, since their numbers must not be used again while
        there are objects that would close them.
        """
        self._is_closed = True
        self._lock = threading.Lock()  # somebody may have held the old one
        null = os.open(os.devnull, os.O_RDWR)
        for subscription in {*self._subscriptions.values(), *self._holders.values()}:
            for fileno in subscription.consumer.filenos:
                if fileno >= 0:
                    os.dup2(null, fileno, inheritable=False)
        os.close(null)

    # Listening.

    def subscribe(
        self, queue: str, topic: str, channel: str, *, prefetch_count: int, is_live: bool = False
    ) -> None:
        """Listens, if it does not already; `is_live` for what is published from now on only.

        Raises NotConnectedError or RefusedError.
        """
        self.run(self._subscribe(queue, topic, channel, prefetch_count, is_live=is_live))

    def set_prefetch_count(self, queue: str, prefetch_count: int) -> None:
        """How many messages of the queue may be here unanswered; 0 for as many as can be."""
        self._leave(lambda: self._set_prefetch_count(queue, prefetch_count))

    def unsubscribe(self, queue: str) -> None:
        """Listens no more. Messages that were handed out can still be answered."""
        if self._is_closed:
            return
        self._leave(lambda: self._unsubscribe(queue))
        for delivery in self.inbox.take_back(queue):
            self.requeue(delivery.tag)

    # Answers. Those that come too late are nobody's: nsqd delivers the message again.

    def finish(self, tag: int) -> None:
        self._leave(lambda: self._answer(tag, Message.finish))

    def requeue(self, tag: int) -> None:
        self._leave(lambda: self._answer(tag, Message.requeue))

    # The thread.

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        """With the lock. Raises ClientClosedError."""
        if self._is_closed:
            raise ClientClosedError("the connection is closed")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_until_stopped,
                args=(self._loop,),
                name="penstock.celery",
                daemon=True,
            )
            self._thread.start()
        return self._loop

    def _leave(self, call: Callable[[], None]) -> None:
        """Leaves a call for the thread. One wake-up serves all that are left before it comes."""
        with self._lock:  # what is left before `close` is done before the loop ends
            if self._is_closed or self._loop is None:
                return
            self._calls.append(call)
            if not self._calls_are_due:
                self._calls_are_due = True
                self._loop.call_soon_threadsafe(self._do_calls)

    def _do_calls(self) -> None:
        self._calls_are_due = False
        while self._calls:
            self._calls.popleft()()

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._do_calls()
            for subscription in {*self._subscriptions.values(), *self._holders.values()}:
                self._end_soon(subscription)
            await asyncio.gather(*self._endings, return_exceptions=True)
        finally:
            loop.call_soon(loop.stop)

    # In the thread: listening.

    async def _subscribe(
        self, queue: str, topic: str, channel: str, prefetch_count: int, *, is_live: bool
    ) -> None:
        if (queue, topic) in self._subscriptions:
            self._set_prefetch_count(queue, prefetch_count)
            return
        since_ns = time.time_ns() if is_live else 0
        nsqds = set(self._settings.nsqds)
        if is_live and self._settings.lookupds:
            # Who waited until a lookupd knows of the topic would miss what made it known.
            nsqds |= await asyncio.to_thread(
                look_up, self._settings.lookupds, ALL_NODES, self._settings.config
            )
        consumer = Consumer(
            topic,
            channel,
            nsqd=sorted(nsqds),
            lookupd=self._settings.lookupds,
            max_in_flight=prefetch_count or IN_FLIGHT_MAX,
            config=self._settings.config,
        )
        await consumer.start()
        subscription = _Subscription(queue, consumer, since_ns)
        self._subscriptions[queue, topic] = subscription
        subscription.tasks += [
            asyncio.create_task(self._pump(subscription)),
            asyncio.create_task(consumer.keep_touching(subscription.held.values)),
        ]
        for task in subscription.tasks:
            task.add_done_callback(_tell_of_bug)

    def _set_prefetch_count(self, queue: str, prefetch_count: int) -> None:
        for subscription in self._of_queue(queue):
            subscription.consumer.set_max_in_flight(prefetch_count or IN_FLIGHT_MAX)

    def _unsubscribe(self, queue: str) -> None:
        for subscription in self._of_queue(queue):
            subscription.is_cancelled = True
            del self._subscriptions[queue, subscription.consumer.topic]
            subscription.consumer.stop()
            if not subscription.held:
                self._end_soon(subscription)

    def _of_queue(self, queue: str) -> list[_Subscription]:
        return [each for each in self._subscriptions.values() if each.queue == queue]

    def _end_soon(self, subscription: _Subscription) -> None:
        ending = asyncio.get_running_loop().create_task(self._end(subscription))
        ending.add_done_callback(_tell_of_bug)
        ending.add_done_callback(self._endings.discard)
        self._endings.add(ending)

    async def _end(self, subscription: _Subscription) -> None:
        for tag, message in subscription.held.items():
            del self._holders[tag]
            message.requeue()
        subscription.held.clear()
        await subscription.consumer.close()
        pump, touching = subscription.tasks
        touching.cancel()
        await pump  # which ends with its consumer

    # In the thread: messages.

    async def _pump(self, subscription: _Subscription) -> None:
        while messages := await subscription.consumer.batch():
            for message in messages:
                self._take(subscription, message)

    def _take(self, subscription: _Subscription, message: Message) -> None:
        if subscription.is_cancelled:
            message.requeue()
            return
        if message.timestamp_ns < subscription.since_ns:
            message.finish()
            return
        tag = subscription.tags.get((message.address, message.id))
        if tag is not None:
            log.warning("%s: delivered again, while it is worked on here", message)
            subscription.held[tag] = message
            return
        payload = _payload_of(message)
        if payload is None:
            log.error("%s: dropped, since it is not a message of kombu's", message)
            message.finish()
            return
        early_seconds = seconds_until_due(payload["headers"], datetime.now(UTC))
        if early_seconds > EARLY_SECONDS:
            message.requeue(min(early_seconds, self._settings.max_defer))
            return
        self._hold(subscription, message, payload)

    def _hold(self, subscription: _Subscription, message: Message, payload: dict[str, Any]) -> None:
        tag = next(self._tags)
        payload["properties"]["delivery_tag"] = tag
        payload["properties"]["delivery_info"]["redelivered"] = message.attempts > 1
        subscription.held[tag] = message
        subscription.tags[message.address, message.id] = tag
        self._holders[tag] = subscription
        self.inbox.put(Delivery(subscription.queue, tag, payload))

    def _answer(self, tag: int, answer: Callable[[Message], None]) -> None:
        subscription = self._holders.pop(tag, None)
        if subscription is None:
            return
        message = subscription.held.pop(tag)
        del subscription.tags[message.address, message.id]
        answer(message)
        if subscription.is_cancelled and not subscription.held:
            self._end_soon(subscription)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """What is still under way then is cancelled, so that nobody waits for it for ever."""
    try:
        loop.run_forever()
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
    finally:
        loop.close()


def _payload_of(message: Message) -> dict[str, Any] | None:
    """What kombu has put into a message, or None if it was not kombu, or if reading it would fail
    later, where it would end the worker."""
    try:
        payload: dict[str, Any] = loads(message.body)
        properties = payload["properties"]
        if properties.get("body_encoding") == "base64":
            base64.b64decode(payload["body"])
        is_whole = isinstance(payload["headers"], dict) and isinstance(
            properties["delivery_info"], dict
        )
    except Exception:  # noqa: BLE001 (anybody may publish anything, and kombu's decoders raise all)
        return None
    return payload if is_whole else None


def _tell_of_bug(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (bug := task.exception()) is not None:
        log.error("a task of the receiver ended by mistake", exc_info=bug)


_receivers: "weakref.WeakSet[Receiver]" = weakref.WeakSet()


def _abandon_all() -> None:
    for receiver in list(_receivers):
        receiver.abandon()
    _receivers.clear()


os.register_at_fork(after_in_child=_abandon_all)
