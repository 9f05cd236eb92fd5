"""The broker: all topics, and the operations that TCP and HTTP share.

Pure: the clock and the data path are injected, and the engine owns the event loop. Operations that
change persistent state write it before they return.
"""

from collections.abc import Callable, Iterable, Iterator

from penstock.broker.channel import RETRY_NS, Channel
from penstock.broker.latency import LatencyWindow
from penstock.broker.memory_log import MemoryLog
from penstock.broker.scheduler import EngineCallbacks, Scheduler
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.clock import MILLISECOND_NS, Clock
from penstock.common.errors import InternalError, LimitReachedError, ProtocolError, StorageError
from penstock.storage import DataPath, Issue, TopicStore, close_stores

__all__ = ["Broker"]

# A wall clock that moves by more than this against the steady one has been set, not slewed.
_CLOCK_STEP_NS = 5 * MILLISECOND_NS


class TopicCache(dict[str, Topic]):
    """Where publishes go: `topic_cache[name]` is the topic, made if there is none. Raises
    StorageError if it cannot be, or while we take no more messages."""

    def __init__(self, find: Callable[[str], Topic]) -> None:
        self._find = find

    def __missing__(self, name: str) -> Topic:
        topic = self[name] = self._find(name)
        return topic


class Broker:
    """See the module's docstring."""

    def __init__(
        self,
        settings: BrokerSettings,
        data_path: DataPath,
        engine: EngineCallbacks,
        clock: Clock,
        sample: Callable[[], float],
    ) -> None:
        """`sample` draws uniformly from [0, 1) for subscribers that want only a share."""
        self.topics: dict[str, Topic] = {}
        self.topic_cache = TopicCache(self._find_topic_to_publish)
        self.findings: list[Issue] = []  # what recovery had to mend
        self.exiting = False
        self.draining = False
        self._settings = settings
        self._data_path = data_path
        self._clock = clock
        self._sample = sample
        self._armed_by_offset_ns = clock.wall_ns() - clock.now_ns()
        self._scheduler = Scheduler(engine, self._armed_by_offset_ns)
        for name in data_path.topics():
            self._open_topic(name)

    # Topics and channels.

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if there is none."""
        topic = self.topics.get(name)
        if topic is None:
            if 0 < self._settings.max_topics <= len(self.topics):
                raise LimitReachedError(
                    f"too many topics, the limit is {self._settings.max_topics}"
                )
            topic = self._open_topic(name)
            self._scheduler.topology_changed(topic, persistent=not topic.ephemeral)
            self._scheduler.topic_created(topic)
        return topic

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with its channels and its log."""
        topic = self.topics.pop(name)
        self.topic_cache.pop(name, None)
        topic.discard()
        if not topic.ephemeral:
            self._data_path.remove_topic(name, wall_ns=self._clock.wall_ns())
        self._scheduler.topology_changed(topic, persistent=not topic.ephemeral)

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Deletes a channel, and an ephemeral topic with its last channel."""
        topic.delete_channel(name)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic.name)

    # Subscribers.

    def subscribe(self, topic_name: str, channel_name: str, subscriber: Subscriber) -> Channel:
        """Joins a subscriber to a channel, which is made if there is none."""
        if self.exiting:
            raise ProtocolError("E_SUB_FAILED", "SUB failed exiting")
        channel = self.topic(topic_name).channel(channel_name)
        if channel.committing:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed channel {topic_name}:{channel_name} is moved by commits",
            )
        limit = self._settings.max_channel_consumers
        if limit and len(channel.subscribers) >= limit:
            raise ProtocolError(
                "E_SUB_FAILED",
                f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}",
            )
        channel.add(subscriber)
        return channel

    def unsubscribe(self, topic_name: str, channel: Channel, subscriber: Subscriber) -> None:
        """A subscriber has gone. An ephemeral channel goes with its last one."""
        if subscriber not in channel.subscribers:
            return  # the channel was deleted before its subscriber left
        channel.remove(subscriber)
        if channel.ephemeral and not channel.subscribers:
            topic = self.topics[topic_name]
            try:
                self.delete_channel(topic, channel.name)
            except StorageError:
                self._scheduler.unsaved(topic)  # it is gone; that its topic holds, is written later

    # What the engine calls when the time has come.

    def pump(self) -> list[StorageError]:
        """Delivers what can be delivered, a turn for each channel. Returns what could not be read;
        that is tried again in a while."""
        scheduler = self._scheduler
        if scheduler.outgoing:
            self.deliver()
        if not scheduler.awake:
            return []
        awake = scheduler.take_awake()
        now_ns = self._clock.now_ns()
        failures = []
        for channel in awake:
            try:
                channel.pump(now_ns)
            except StorageError as failure:
                failures.append(failure)
                scheduler.arm(channel, now_ns + RETRY_NS)
            except Exception as bug:  # noqa: BLE001 (reported; the other channels go on)
                self._restart(channel, "delivering", bug)
        return failures

    def deliver(self) -> None:
        """Sends what has been handed out."""
        for peer, frames in self._scheduler.take_outgoing():
            try:
                peer.deliver(frames)
            except Exception as bug:  # noqa: BLE001 (reported; costs this connection and no other)
                self._scheduler.report_bug("sending messages", bug)
                peer.channel_gone()

    def advance(self) -> list[StorageError]:
        """Brings back what has timed out or come due. Returns what could not be read; that is tried
        again in a while."""
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        self._follow_wall_clock(wall_ns - now_ns)
        failures = []
        for channel in self._scheduler.take_due(now_ns):
            try:
                channel.advance(now_ns, wall_ns)
            except StorageError as failure:
                failures.append(failure)
                self._scheduler.arm(channel, now_ns + RETRY_NS)
            except Exception as bug:  # noqa: BLE001 (reported; the other channels go on)
                self._restart(channel, "timing out messages", bug)
        return failures

    def next_deadline_ns(self) -> int | None:
        """The steady time at which `advance` will next have something to do."""
        return self._scheduler.next_deadline_ns()

    def save_progress(self) -> list[StorageError]:
        """Journals what has been finished. Returns what went wrong; that is tried again."""
        topics, wall_ns = self._scheduler.take_unsaved(), self._clock.wall_ns()
        # Deleting files can take its time, so all progress is written before.
        return [
            *self.try_on_each(topics, Topic.save_progress),
            *self.try_on_each(topics, lambda topic: topic.trim(wall_ns)),
        ]

    def drain(self) -> None:
        """Takes no more messages, and goes on handing out those it has."""
        self.draining = True
        self.topic_cache.clear()

    def exit(self) -> None:
        """Takes no more messages nor subscribers."""
        self.exiting = True
        self.topic_cache.clear()

    def close(self) -> list[StorageError]:
        """Stores everything and sends all subscribers away. Returns what could not be stored."""
        self.exit()
        topics = list(self.topics.values())
        failures = list(self.try_on_each(topics, Topic.close))
        stores = [topic.store for topic in topics if topic.store is not None]
        return failures + close_stores(stores)

    def probe_logs(self) -> list[Issue | StorageError]:
        """To be called every few seconds: tries whether a log that failed can be written again.
        Returns the damage that reading has found and skipped, and failures."""
        findings: list[Issue] = []

        def probe(topic: Topic) -> None:
            if topic.store is not None:
                log = topic.store.log
                log.probe()
                findings.extend(log.damage)
                log.damage.clear()

        failures = list(self.try_on_each(self.topics.values(), probe))
        return [*failures, *findings]

    def trim_logs(self) -> list[StorageError]:
        """To be called every few seconds: what was kept for a time is deleted when that is over.
        Returns what went wrong; that is tried again."""
        topics = [
            topic
            for topic in self.topics.values()
            if topic.store is not None and topic.store.log.retention.is_set
        ]
        wall_ns = self._clock.wall_ns()

        def save_and_trim(topic: Topic) -> None:
            topic.save_progress()
            topic.trim(wall_ns)

        return list(self.try_on_each(topics, save_and_trim))

    def try_on_each(
        self, topics: Iterable[Topic], step: Callable[[Topic], None]
    ) -> Iterator[StorageError]:
        """Calls `step` for each topic, also after one has failed. Yields the failures; topics
        that failed count as unsaved again."""
        for topic in tuple(topics):
            try:
                step(topic)
            except StorageError as failure:
                self._scheduler.unsaved(topic)
                yield failure
            except Exception as bug:  # noqa: BLE001 (reported; the other topics go on)
                self._scheduler.unsaved(topic)
                self._scheduler.report_bug(f"storing topic {topic.name}", bug)
                yield InternalError(f"storing topic {topic.name}", bug)

    def health(self) -> str | None:
        """Why the last write to any log failed, or None if all is well."""
        for topic in self.topics.values():
            if topic.store is not None and topic.store.log.error is not None:
                return topic.store.log.error
        return None

    def _find_topic_to_publish(self, name: str) -> Topic:
        if self.exiting or self.draining:
            raise StorageError("exiting" if self.exiting else "draining")
        return self.topic(name)

    def _open_topic(self, name: str) -> Topic:
        wall_ns = self._clock.wall_ns()
        store: MemoryLog | TopicStore
        if names.is_ephemeral(name):
            store = MemoryLog(wall_ns // 1000, self._settings.mem_queue_size)
        else:
            store, findings = self._data_path.open_topic(name, wall_ns=wall_ns)
            self.findings.extend(findings)
        topic = Topic(
            name,
            store,
            self._settings,
            self._scheduler,
            self._clock,
            self._sample,
            self._new_latency,
        )
        self.topics[name] = topic
        return topic

    def _new_latency(self) -> LatencyWindow | None:
        window_ns = self._settings.latency_window_ns
        return LatencyWindow(window_ns, self._clock) if window_ns else None

    def _restart(self, channel: Channel, doing: str, bug: Exception) -> None:
        """Restarts a channel from the log after an unexpected exception; others are unaffected."""
        self._scheduler.report_bug(f"{doing} of channel {channel.name}", bug)
        try:
            channel.restart(self._clock.now_ns())
        except Exception as another:  # noqa: BLE001 (reported; the next retry restarts it again)
            self._scheduler.report_bug(f"restarting channel {channel.name}", another)

    def _follow_wall_clock(self, offset_ns: int) -> None:
        """Finds the deferred messages a new steady deadline when somebody has set the clock."""
        self._scheduler.wall_offset_ns = offset_ns
        if abs(offset_ns - self._armed_by_offset_ns) <= _CLOCK_STEP_NS:
            return
        self._armed_by_offset_ns = offset_ns
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.arm()
