"""A consumer of a channel that is never away, while Spark asks for messages only now and then.

A thread owns the connections: it answers heartbeats, takes in what comes, and keeps what Spark is
working on from timing out. Others hand it their wishes; what they get are messages not yet
answered.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from penstock.client.blocking import Consumer, Message
from penstock.common.errors import ClientError, Error

__all__ = ["ChannelPump"]

# How long the thread waits for messages at a time, and so how long a wish waits for it.
STEP_SECONDS = 0.05

# nsqd is asked for a minute of patience with each message, and reminded well before it is over.
MSG_TIMEOUT_SECONDS = 60.0
TOUCH_SECONDS = 20.0


class ChannelPump:
    """Started when it is made; `make` connects. Raises what `make` raises."""

    def __init__(self, make: Callable[[], Consumer]) -> None:
        self._changed = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._taken: set[Message] = set()
        self._done: list[Message] = []
        self._failure: Error | None = None
        self._stopping = False
        self._touch_at = time.monotonic() + TOUCH_SECONDS
        self._consumer = make()
        self._consumer.start()
        self._thread = threading.Thread(target=self._run, name="nsq channel", daemon=True)
        self._thread.start()

    def take(
        self, count_max: int, *, seconds: float = 0.0, published_before_ns: int | None = None
    ) -> list[Message]:
        """The oldest messages that are here, so many at most, and none that are younger; waits for
        the first as long as it is told. Raises what ended the connections."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._failure, seconds)
            if self._failure is not None and not self._inbox:
                raise self._failure
            taken: list[Message] = []
            while self._inbox and len(taken) < count_max:
                if not _is_before(self._inbox[0], published_before_ns):
                    break
                taken.append(self._inbox.popleft())
            self._taken.update(taken)
            return taken

    def finish(self, messages: Iterable[Message]) -> None:
        """They are done with."""
        with self._changed:
            self._done.extend(messages)

    def close(self) -> None:
        """Sends the last answers; what has not been finished is given back."""
        self._stopping = True
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                arrived = self._consumer.batch(timeout=STEP_SECONDS)
                with self._changed:
                    self._inbox.extend(arrived)
                    self._changed.notify_all()
                self._answer()
            self._answer()
        except Error as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
        finally:
            self._consumer.close()

    def _answer(self) -> None:
        with self._changed:
            done, self._done = self._done, []
            self._taken.difference_update(done)
            held = [*self._taken, *self._inbox]
        for message in done:
            message.finish()
        self._consumer.flush()
        if time.monotonic() >= self._touch_at:
            self._touch_at = time.monotonic() + TOUCH_SECONDS
            for message in held:
                _touch(message)


def _touch(message: Message) -> None:
    try:
        message.touch()
    except ClientError:
        return  # its connection is lost: nsqd will deliver it again, and that is all there is to do


def _is_before(message: Message, time_ns: int | None) -> bool:
    return time_ns is None or message.timestamp_ns <= time_ns
