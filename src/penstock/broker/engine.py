"""The engine: runs the broker on an event loop.

Three kinds of work, all in the loop's thread:

* The end of a turn. Events of one turn of the loop (commands, HTTP requests) only collect
  publishes. At its end the engine stores them, one batch per topic, answers them, and then delivers
  messages to the subscribers that can take some.
* Timers. One timer runs at the next deadline of any channel (message timeouts, deferred messages),
  another journals the progress of channels.
* Housekeeping, every sync timeout: fsync what is not synced, probe failed logs, trim logs.

The loop and the clock are injected, so that tests run the engine in simulated time.
"""

from collections.abc import Callable
from typing import Any, Protocol

from penstock.broker.broker import Broker
from penstock.broker.publishing import PublishConfirmation, Publisher
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS, Clock
from penstock.common.logs import Logger
from penstock.storage import DataPath, GroupCommit

__all__ = ["SAVE_SECONDS", "Engine", "EventLoop", "TimerHandle", "TopologyListener"]

# Delay before progress is journalled. A crash may repeat the work of 100 ms; this is well below,
# and long enough that few messages pay for the write.
SAVE_SECONDS = 0.05

# Delay before journalling is retried after the disk has failed.
SAVE_RETRY_SECONDS = 1.0


class TimerHandle(Protocol):
    """Result of `EventLoop.call_later`."""

    def cancel(self) -> object:
        """Prevents the call, if it has not been made yet."""


class EventLoop(Protocol):
    """The functions of an asyncio event loop that the engine uses."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Calls `callback` in the next turn of the loop."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Calls `callback` after `delay` seconds."""


class TopologyListener(Protocol):
    """Receives changes of topics and channels."""

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None:
        """The topic, or one of its channels, was created or deleted. `persistent` is False if it
        is ephemeral."""

    def topic_created(self, topic: Topic) -> None:
        """A topic was created; nothing has been published to it yet."""


class Engine:
    """Owns a broker and its publisher, and calls them when there is work to do."""

    def __init__(
        self,
        settings: BrokerSettings,
        data_path: DataPath,
        loop: EventLoop,
        clock: Clock,
        *,
        sample: Callable[[], float],
        commit: GroupCommit,
        listener: TopologyListener,
        log: Logger,
        report_bug: Callable[[str, Exception], None],
        housekeeping_seconds: float,
        confirmation: PublishConfirmation | None = None,
    ) -> None:
        """Opens all topics of the data path. Raises StorageError.

        `sample` draws uniformly from [0, 1). `report_bug` is called with unexpected exceptions;
        the engine continues with the next step. `confirmation` is None without replication.
        """
        self.report_bug = report_bug
        self.topology_changed = listener.topology_changed
        self.topic_created = listener.topic_created
        self._loop = loop
        self._clock = clock
        self._commit = commit
        self._log = log
        self._housekeeping_seconds = housekeeping_seconds
        self._turn_is_ending = False
        self._is_stopping = False
        self._advance_timer: TimerHandle | None = None
        self._housekeeping_timer: TimerHandle | None = None
        self._save_seconds = SAVE_SECONDS
        self.publisher = Publisher(commit, self.end_turn_soon, report_bug, confirmation)
        self.broker = Broker(settings, data_path, self, clock, sample)

    def start(self) -> None:
        """Starts the housekeeping. Turns and other timers run from construction on."""
        self._run_housekeeping()

    def stop(self) -> None:
        """Cancels the timers; stores and answers what was published in this turn."""
        for timer in (self._advance_timer, self._housekeeping_timer):
            if timer is not None:
                timer.cancel()
        self._is_stopping = True
        self._end_turn()

    # The end of a turn.

    def end_turn_soon(self) -> None:
        """Ends the turn after the events at hand have been handled. May be called repeatedly."""
        if not self._turn_is_ending:
            self._turn_is_ending = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Stores all publishes of one turn of the loop, answers them, and delivers messages."""
        try:
            self.publisher.store()
        finally:
            self._turn_is_ending = False
        for batch in self.publisher.take_done():
            for waiter in batch.waiters:
                try:
                    waiter.on_batch_done(batch)
                except Exception as bug:  # noqa: BLE001 (reported; the other waiters are notified)
                    self.report_bug("answering a publish", bug)
        if not self._is_stopping:
            for failure in self.broker.pump():
                self._log.error("failed to read a log - %s", failure)

    # Timers.

    def advance_at(self, now_ns: int) -> None:
        """Sets the timer of the next deadline to this steady time."""
        if self._advance_timer is not None:
            self._advance_timer.cancel()
        delay_ns = max(now_ns - self._clock.now_ns(), 0)
        self._advance_timer = self._loop.call_later(delay_ns / SECOND_NS, self._advance_soon)

    def save_soon(self) -> None:
        """Journals progress within the journalling interval."""
        # A timer runs before the callbacks that the last turn has scheduled. The journal waits for
        # them, so that it does not delay replies and deliveries.
        self._loop.call_later(self._save_seconds, self._loop.call_soon, self._save_progress)

    def _advance_soon(self) -> None:
        """Advances the broker after the loop has read its sockets: if the process was suspended,
        FINs that arrived in time are still in them."""
        self._loop.call_soon(self._loop.call_soon, self._advance)

    def _advance(self) -> None:
        if self.broker.exiting:
            return
        if self._advance_timer is not None:
            self._advance_timer.cancel()  # The next one is set below.
            self._advance_timer = None
        for failure in self.broker.advance():
            self._log.error("failed to read a log - %s", failure)
        next_ns = self.broker.next_deadline_ns()
        if next_ns is not None:
            self.advance_at(next_ns)

    def _save_progress(self) -> None:
        failures = self.broker.save_progress()
        for failure in failures:
            self._log.error("failed to journal progress - %s", failure)
        self._save_seconds = SAVE_RETRY_SECONDS if failures else SAVE_SECONDS

    # Housekeeping.

    def _run_housekeeping(self) -> None:
        for step in (
            self._sync_rest,
            self._probe_logs,
            self._trim_logs,
            self._log.flush_repeating,
            self._advance_soon,  # The wall clock may have been set.
        ):
            try:
                step()
            except Exception as bug:  # noqa: BLE001 (reported; the other steps run)
                self.report_bug("housekeeping", bug)
        self._housekeeping_timer = self._loop.call_later(
            self._housekeeping_seconds, self._run_housekeeping
        )

    def _sync_rest(self) -> None:
        def request(topic: Topic) -> None:
            if topic.store is not None:
                self._commit.request_if_unsynced(topic.store.log, topic.store.cursors)

        for failure in self.broker.try_on_each(self.broker.topics.values(), request):
            self._log.error("failed to sync - %s", failure)

    def _probe_logs(self) -> None:
        for problem in self.broker.probe_logs():
            self._log.error("%s", problem)

    def _trim_logs(self) -> None:
        for failure in self.broker.trim_logs():
            self._log.error("failed to trim a log - %s", failure)
