"""The broker: all topics, and the operations that TCP and HTTP share.

Pure: the clock and the data path are injected, and the engine owns the event loop. Operations that
change persistent state write it before they return.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from penstock.broker.channel import RETRY_NS, Channel
from penstock.broker.latency import LatencyWindow
from penstock.broker.memory_log import MemoryLog
from penstock.broker.replicated_topic import ReplicatedTopic
from penstock.broker.scheduler import EngineCallbacks, Scheduler
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common import names
from penstock.common.clock import MILLISECOND_NS, Clock
from penstock.common.errors import InternalError, LimitReachedError, ProtocolError, StorageError
from penstock.storage import DataPath, Issue, TopicStore, close_stores

__all__ = ["Broker"]

# If the wall clock moves by more than this against the steady clock, it has been set, not slewed.
_CLOCK_STEP_NS = 5 * MILLISECOND_NS


class TopicCache(dict[str, Topic]):
    """Topics to publish to: `topic_cache[name]` creates the topic if it does not exist. Raises
    StorageError if that fails, or while the broker takes no more messages."""

    def __init__(self, find: Callable[[str], Topic]) -> None:
        self._find = find

    def __missing__(self, name: str) -> Topic:
        topic = self[name] = self._find(name)
        return topic


class Broker:
    """Owns all topics."""

    def __init__(
        self,
        settings: BrokerSettings,
        data_path: DataPath,
        engine: EngineCallbacks,
        clock: Clock,
        sample: Callable[[], float],
    ) -> None:
        """Opens all topics of the data path. `sample` draws uniformly from [0, 1), for subscribers
        that want only a share of the messages. Raises StorageError."""
        self.topics: dict[str, Topic] = {}
        self.topic_cache = TopicCache(self._find_topic_to_publish)
        self.issues: list[Issue] = []
        """Problems that recovery has found and repaired."""
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

    @property
    def node_id(self) -> int:
        """The node id of the next messages."""
        return self._settings.node_id

    def set_node_id(self, node_id: int) -> None:
        """Changes the node id of later messages; stored messages keep their ids."""
        self._settings = replace(self._settings, node_id=node_id)
        for topic in self.topics.values():
            topic.set_node_id(node_id)

    # Topics and channels.

    def topic(self, name: str) -> Topic:
        """Returns the topic of that name, and creates it if it does not exist."""
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
            self._data_path.remove_topic(name)
        self._scheduler.topology_changed(topic, persistent=not topic.ephemeral)

    def delete_channel(self, topic: Topic, name: str) -> None:
        """Deletes a channel, and an ephemeral topic together with its last channel."""
        topic.delete_channel(name)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic.name)

    def set_high_watermark(self, name: str, seq: int) -> None:
        """All followers in sync have the messages of a replicated topic below `seq`: passes them on
        to the channels, and shows them to readers. A topic that does not exist is ignored."""
        topic = self.topics.get(name)
        if isinstance(topic, ReplicatedTopic):
            topic.set_high_watermark(seq)

    # Subscribers.

    def subscribe(self, topic_name: str, channel_name: str, subscriber: Subscriber) -> Channel:
        """Adds a subscriber to a channel, which is created if it does not exist. Raises
        ProtocolError and StorageError."""
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
        """Removes a subscriber. Deletes an ephemeral channel with its last subscriber."""
        if subscriber not in channel.subscribers:
            return  # The channel was deleted before.
        channel.remove(subscriber)
        if channel.ephemeral and not channel.subscribers:
            topic = self.topics[topic_name]
            try:
                self.delete_channel(topic, channel.name)
            except StorageError:
                # The channel is deleted; the topic's pause point is saved later.
                self._scheduler.unsaved(topic)

    # Called by the engine.

    def pump(self) -> list[StorageError]:
        """Sends outgoing frames, then delivers one round of messages of each awake channel. Returns
        the read errors; their channels are retried after RETRY_NS."""
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
        """Sends outgoing frames to their connections."""
        for connection, frames in self._scheduler.take_outgoing():
            try:
                connection.deliver(frames)
            except Exception as bug:  # noqa: BLE001 (reported; closes only this connection)
                self._scheduler.report_bug("sending messages", bug)
                connection.channel_gone()

    def advance(self) -> list[StorageError]:
        """Requeues messages that have timed out, and queues those that are due. Returns the read
        errors; their channels are retried after RETRY_NS."""
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
        """Journals finished messages and trims logs. Returns the failures, which are retried."""
        topics, wall_ns = self._scheduler.take_unsaved(), self._clock.wall_ns()
        # Deleting files can be slow, so the progress of all topics is written first.
        return [
            *self.try_on_each(topics, Topic.save_progress),
            *self.try_on_each(topics, lambda topic: topic.trim(wall_ns)),
        ]

    def drain(self) -> None:
        """Refuses publishes from now on; delivery continues."""
        self.draining = True
        self.topic_cache.clear()

    def exit(self) -> None:
        """Refuses publishes and subscribers from now on."""
        self.exiting = True
        self.topic_cache.clear()

    def close(self) -> list[StorageError]:
        """Stores everything and disconnects all subscribers. Returns the failures."""
        self.exit()
        topics = list(self.topics.values())
        failures = list(self.try_on_each(topics, Topic.close))
        stores = [topic.store for topic in topics if topic.store is not None]
        return failures + close_stores(stores)

    def probe_logs(self) -> list[Issue | StorageError]:
        """To be called every few seconds: tries to write to failed logs. Returns failures, and the
        damage that reads have skipped since the last call."""
        issues: list[Issue] = []

        def probe(topic: Topic) -> None:
            if topic.store is not None:
                log = topic.store.log
                log.probe()
                issues.extend(log.damage)
                log.damage.clear()

        failures = list(self.try_on_each(self.topics.values(), probe))
        return [*failures, *issues]

    def trim_logs(self) -> list[StorageError]:
        """To be called every few seconds: deletes segments whose retention has expired. Returns the
        failures, which are retried."""
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
        """The error of a log whose last write failed, or None if there is none."""
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
            store, issues = self._data_path.open_topic(name, wall_ns=wall_ns)
            self.issues.extend(issues)
        is_replicated = isinstance(store, TopicStore) and store.log.epoch > 0
        topic = (ReplicatedTopic if is_replicated else Topic)(
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
        """If the wall clock was set, gives deferred messages new steady deadlines."""
        self._scheduler.wall_offset_ns = offset_ns
        if abs(offset_ns - self._armed_by_offset_ns) <= _CLOCK_STEP_NS:
            return
        self._armed_by_offset_ns = offset_ns
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.arm()
