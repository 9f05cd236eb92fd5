"""Consumes for kombu, in a separate thread.

The thread runs an event loop with a consumer for every subscribed queue, so that heartbeats,
reconnects and touches continue while kombu's own thread is busy. The two threads exchange
deliveries through the `Inbox` and calls through a queue; the loop's thread owns all other state.

A message is *held* from its delivery to its answer, and touched meanwhile. If nsqd delivers it
again while it is held (after a lost connection, or because it was held longer than nsqd allows),
the new delivery replaces the old one, so that no task runs twice.
"""

import asyncio
import base64
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from kombu.utils.json import loads

from penstock.celery.inbox import Delivery, Inbox
from penstock.celery.settings import Settings
from penstock.client import Consumer, Message
from penstock.client.blocking.lookup import look_up
from penstock.client.discovery import ALL_NODES
from penstock.common.errors import ClientClosedError

__all__ = ["Receiver", "seconds_until_due"]

log = logging.getLogger("penstock.celery")

T = TypeVar("T")

# RDY count for an unlimited prefetch: nsqd's default --max-rdy-count.
IN_FLIGHT_MAX = 2500

# A task due within this time is delivered to Celery instead of requeued.
EARLY_SECONDS = 1.0

CLOSE_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class _Subscription:
    """The consumer of one topic of a queue, and its unanswered messages."""

    queue: str
    consumer: Consumer
    since_ns: int
    """Messages published earlier are finished unseen."""
    held: dict[int, Message] = field(default_factory=dict)
    tags: dict[tuple[str, bytes], int] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    is_cancelled: bool = False


class Receiver:
    """Subscribes to queues. The thread starts with the first subscription."""

    def __init__(self, settings: Settings) -> None:
        self.inbox = Inbox()
        self._settings = settings
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._calls: deque[Callable[[], None]] = deque()
        self._calls_scheduled = False
        self._tags = itertools.count(1)
        self._subscriptions: dict[tuple[str, str], _Subscription] = {}
        self._holders: dict[int, _Subscription] = {}
        self._endings: set[asyncio.Task[None]] = set()
        _receivers.add(self)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result. Raises ClientClosedError."""
        with self._lock:  # the end of the loop cancels coroutines started before `close`
            try:
                outcome = asyncio.run_coroutine_threadsafe(coroutine, self._started_loop())
            except ClientClosedError:
                coroutine.close()
                raise
        try:
            return outcome.result()
        except CancelledError:
            raise ClientClosedError("the connection was closed during the operation") from None

    def close(self) -> None:
        """Requeue unanswered messages and disconnect."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop)
            self._thread.join(CLOSE_SECONDS)
        self.inbox.close()

    def abandon(self) -> None:
        """Release the sockets of the parent in a forked child.

        They are redirected to /dev/null, not closed: a reused file descriptor would be closed by
        the old objects.
        """
        self._is_closed = True
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        null = os.open(os.devnull, os.O_RDWR)
        for subscription in {*self._subscriptions.values(), *self._holders.values()}:
            for fileno in subscription.consumer.filenos:
                if fileno >= 0:
                    os.dup2(null, fileno, inheritable=False)
        os.close(null)

    # Subscriptions.

    def subscribe(
        self, queue: str, topic: str, channel: str, *, prefetch_count: int, is_live: bool = False
    ) -> None:
        """Subscribe a queue to a topic, unless it is subscribed. With `is_live`, skip messages
        published before now. Raises NotConnectedError or RefusedError."""
        self.run(self._subscribe(queue, topic, channel, prefetch_count, is_live=is_live))

    def set_prefetch_count(self, queue: str, prefetch_count: int) -> None:
        """Set the maximum of unanswered messages of the queue; 0 for no limit."""
        self._call_in_thread(lambda: self._set_prefetch_count(queue, prefetch_count))

    def unsubscribe(self, queue: str) -> None:
        """Unsubscribe a queue. Delivered messages can still be answered; those that wait in the
        inbox are requeued."""
        if self._loop is None:
            return
        # The thread is waited for: until then it may put a message into the inbox, which nobody
        # would take out.
        with contextlib.suppress(ClientClosedError):
            self.run(self._unsubscribe(queue))
        for delivery in self.inbox.remove_queue(queue):
            self.requeue(delivery.tag)

    # Answers. A late answer has no effect: nsqd delivers the message again.

    def finish(self, tag: int) -> None:
        self._call_in_thread(lambda: self._answer(tag, Message.finish))

    def requeue(self, tag: int) -> None:
        self._call_in_thread(lambda: self._answer(tag, Message.requeue))

    # The thread.

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; the caller holds the lock. Raises ClientClosedError."""
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

    def _call_in_thread(self, call: Callable[[], None]) -> None:
        """Queue a call for the thread. Calls queued before it wakes up share one wake-up."""
        with self._lock:  # calls queued before `close` run before the loop ends
            if self._is_closed or self._loop is None:
                return
            self._calls.append(call)
            if not self._calls_scheduled:
                self._calls_scheduled = True
                self._loop.call_soon_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        self._calls_scheduled = False
        while self._calls:
            self._calls.popleft()()

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._run_calls()
            for subscription in {*self._subscriptions.values(), *self._holders.values()}:
                self._end_soon(subscription)
            await asyncio.gather(*self._endings, return_exceptions=True)
        finally:
            loop.call_soon(loop.stop)

    # In the thread: subscriptions.

    async def _subscribe(
        self, queue: str, topic: str, channel: str, prefetch_count: int, *, is_live: bool
    ) -> None:
        if (queue, topic) in self._subscriptions:
            self._set_prefetch_count(queue, prefetch_count)
            return
        since_ns = time.time_ns() if is_live else 0
        nsqds = set(self._settings.nsqds)
        if is_live and self._settings.lookupds:
            # Connect to all nsqds at once: if the consumer waited until an nsqlookupd lists the
            # topic, it would miss the message that creates it.
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
            task.add_done_callback(_log_exception)

    def _set_prefetch_count(self, queue: str, prefetch_count: int) -> None:
        for subscription in self._of_queue(queue):
            subscription.consumer.set_max_in_flight(prefetch_count or IN_FLIGHT_MAX)

    async def _unsubscribe(self, queue: str) -> None:
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
        ending.add_done_callback(_log_exception)
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
        await pump  # it ends with its consumer

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
            log.warning("%s: delivered again while its task is running", message)
            subscription.held[tag] = message
            return
        payload = _parse_payload(message)
        if payload is None:
            log.error("%s: dropped, because it is not a kombu message", message)
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
    """Run the loop; when it is stopped, cancel the remaining tasks, so that no caller waits for
    them."""
    try:
        loop.run_forever()
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
    finally:
        loop.close()


def _parse_payload(message: Message) -> dict[str, Any] | None:
    """The kombu payload of a message. None if it is not from kombu or would fail later in kombu,
    which would end the worker."""
    try:
        payload: dict[str, Any] = loads(message.body)
        properties = payload["properties"]
        if properties.get("body_encoding") == "base64":
            base64.b64decode(payload["body"])
        is_valid = isinstance(payload["headers"], dict) and isinstance(
            properties["delivery_info"], dict
        )
    except Exception:  # noqa: BLE001 (bodies are untrusted, and kombu's decoders raise any exception)
        return None
    return payload if is_valid else None


def _log_exception(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and (bug := task.exception()) is not None:
        log.error("a task of the receiver failed", exc_info=bug)


_receivers: "weakref.WeakSet[Receiver]" = weakref.WeakSet()


def _abandon_all() -> None:
    for receiver in list(_receivers):
        receiver.abandon()
    _receivers.clear()


os.register_at_fork(after_in_child=_abandon_all)


def seconds_until_due(headers: Mapping[str, Any], now: datetime) -> float:
    """Seconds until the task of a message with these headers is due; 0 if it is due now.

    Also 0 if the eta is invalid or has no time zone: Celery knows the configured time zone and
    delays the task itself.
    """
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    if due.tzinfo is None:
        return 0.0
    return max((due - now).total_seconds(), 0.0)
