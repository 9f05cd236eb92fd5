"""What stands around a broker in these tests, all of it in memory.

A `Host` is the event loop and the disk: it does what the broker asks its engine for, when it asks
for it, on a clock set by hand, and it can crash. A `Consumer` is a connection that records what it
is sent and names messages by their bodies. That no delivery exceeds RDY is checked in every test,
with each delivery.
"""

from collections.abc import Callable
from itertools import chain

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.replicated_topic import ReplicatedTopic
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import UNKNOWN_LOCATION, Location, Subscriber
from penstock.broker.topic import Topic
from penstock.common.clock import SECOND_NS
from penstock.protocol import frames as wire
from penstock.storage import DataPath, LogSettings, TopicLog
from penstock.testing import FaultyFiles, ManualClock, MemoryFiles
from penstock.testing.bugs import raise_bug

__all__ = [
    "MSG_TIMEOUT_NS",
    "Consumer",
    "Host",
    "Recorder",
    "RecordingEngine",
    "ReplicatedHost",
    "damage",
]

MSG_TIMEOUT_NS = 60 * SECOND_NS

# More rounds of pumping than any test has use for: the broker asks to be pumped without end.
_ROUNDS_MAX = 100_000


class RecordingEngine:
    """A `EngineCallbacks` that keeps what it was asked for."""

    def __init__(self) -> None:
        self.pump_wanted = False
        self.advance_wanted_ns: int | None = None
        self.pumps_asked = 0
        self.advances_asked: list[int] = []
        self.saves_asked = 0
        self.topology_changes = 0
        self.topics_created: list[Topic] = []

    def end_turn_soon(self) -> None:
        self.pump_wanted = True
        self.pumps_asked += 1

    def advance_at(self, now_ns: int) -> None:
        self.advance_wanted_ns = now_ns
        self.advances_asked.append(now_ns)

    def save_soon(self) -> None:
        self.saves_asked += 1

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None:
        self.topology_changes += persistent

    def topic_created(self, topic: Topic) -> None:
        self.topics_created.append(topic)

    report_bug = staticmethod(raise_bug)


class Recorder:
    """A `SubscriberConnection` that keeps what it was sent."""

    def __init__(self) -> None:
        self.deliveries: list[list[bytes]] = []
        self.gone = False

    def deliver(self, frames: list[bytes]) -> None:
        assert frames, "a delivery of nothing"
        self.deliveries.append(list(frames))

    def channel_gone(self) -> None:
        self.gone = True

    @property
    def frames(self) -> list[bytes]:
        """All that was sent so far."""
        return list(chain.from_iterable(self.deliveries))

    @property
    def bodies(self) -> list[str]:
        """The bodies of all that was sent so far."""
        return [wire.body(frame).decode() for frame in self.frames]

    @property
    def attempts(self) -> list[int]:
        """The attempts of all that was sent so far."""
        return [wire.attempts(frame) for frame in self.frames]


class Consumer(Recorder):
    """A subscribed connection."""

    def __init__(
        self,
        host: "Host",
        topic: str,
        channel: str,
        *,
        msg_timeout_ns: int = MSG_TIMEOUT_NS,
        sample_rate: int = 0,
        location: Location = UNKNOWN_LOCATION,
    ) -> None:
        super().__init__()
        self.subscriber = Subscriber(self, msg_timeout_ns, sample_rate, location)
        self.channel: Channel = host.broker.subscribe(topic, channel, self.subscriber)
        self._host = host
        self._topic = topic
        self._taken = 0

    def deliver(self, frames: list[bytes]) -> None:
        super().deliver(frames)
        self._host.deliveries.append((self, frames))
        assert len(self.subscriber.in_flight) <= self.subscriber.rdy

    def take(self) -> list[str]:
        """The bodies of what was sent since this was last called."""
        start, self._taken = self._taken, len(self.bodies)
        return self.bodies[start:]

    def id_of(self, body: str) -> bytes:
        """The id of the message last received with this body."""
        matching = [frame for frame in self.frames if wire.body(frame) == body.encode()]
        return wire.message_id(matching[-1])

    def rdy(self, count: int) -> None:
        self.subscriber.rdy = count
        self.channel.ready(self.subscriber)
        self._host.events_done()

    def fin(self, *bodies: str) -> None:
        """Finishes messages in one go. Raises the first refusal."""
        refusals = self.channel.finish(self.subscriber, [self.id_of(body) for body in bodies])
        self._host.events_done()
        if refusals:
            raise refusals[0]

    def req(self, body: str, delay_ns: int = 0) -> None:
        due_ns = self._host.clock.wall_ns() + delay_ns if delay_ns else 0
        self.channel.requeue(self.subscriber, self.id_of(body), due_ns)
        self._host.events_done()

    def touch(self, body: str) -> None:
        self.channel.touch(self.subscriber, self.id_of(body), self._host.clock.now_ns())
        self._host.events_done()

    def leave(self) -> None:
        self._host.broker.unsubscribe(self._topic, self.channel, self.subscriber)
        self._host.events_done()


def damage(files: MemoryFiles, body: str, topic: str = "t") -> None:
    """Changes a byte of a message on the disk."""
    folder = f"data/topics/{topic}"
    for name in files.list_names(folder):
        file = files.open(f"{folder}/{name}", "write")
        position = file.read(0, file.size()).find(body.encode())
        if position >= 0:
            file.write(b"~", position)
            return
    raise AssertionError(f"{body} is not stored")


class Host:
    """A broker with the loop, the clock and the disk that it needs."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        log_settings: LogSettings | None = None,
        sample: Callable[[], float] = lambda: 0.0,
        pumps_by_itself: bool = True,
    ) -> None:
        self.settings = settings or BrokerSettings()
        self.log_settings = log_settings or LogSettings()
        self.clock = ManualClock()
        self.deliveries: list[tuple[Consumer, list[bytes]]] = []
        """All that was delivered to anybody, in order."""
        self.memory_files = MemoryFiles()
        self.files = FaultyFiles(self.memory_files)
        self.memory_files.make_folder("data")
        self.memory_files.sync_folder("")  # it was there before us
        self._sample = sample
        self._pumps_by_itself = pumps_by_itself
        self.start()

    def start(self) -> None:
        self.engine = RecordingEngine()
        self._data_path = DataPath.open(
            "data", self.log_settings, self.files, epoch=self.next_epoch()
        )
        self.broker = Broker(self.settings, self._data_path, self.engine, self.clock, self._sample)

    def next_epoch(self) -> int:
        """The epoch of the next process; 0 without replication."""
        return 0

    def restart(self) -> None:
        """A clean stop, and a new process."""
        assert [] == self.broker.close()
        self.reopen()

    def reopen(self) -> None:
        """Starts a new process; the broker was closed before."""
        self._data_path.close()
        self.start()

    def crash(self) -> None:
        """The process ends where it is, and there is a new one."""
        self.memory_files.crash()
        self.start()

    def publish(self, topic: str, *bodies: str, defer_ns: int = 0) -> None:
        """Publishes a batch."""
        encoded = [body.encode() for body in bodies]
        self.broker.topic_cache[topic].publish(encoded, defer_ns)
        self.events_done()

    def consumer(
        self,
        topic: str = "t",
        channel: str = "c",
        *,
        rdy: int = 0,
        msg_timeout_ns: int = MSG_TIMEOUT_NS,
        sample_rate: int = 0,
        location: Location = UNKNOWN_LOCATION,
    ) -> Consumer:
        """A new connection that has subscribed."""
        consumer = Consumer(
            self,
            topic,
            channel,
            msg_timeout_ns=msg_timeout_ns,
            sample_rate=sample_rate,
            location=location,
        )
        if rdy:
            consumer.rdy(rdy)
        return consumer

    def channel(self, topic: str = "t", channel: str = "c") -> Channel:
        return self.broker.topic(topic).channel(channel)

    def save_progress(self) -> None:
        assert [] == self.broker.save_progress()

    # The event loop.

    def events_done(self) -> None:
        """The events at hand have been handled: now the broker is pumped, if it asked for that."""
        if self._pumps_by_itself:
            self.pump()

    def pump(self) -> None:
        """Pumps until there is nothing more to deliver."""
        for _ in range(_ROUNDS_MAX):
            if not self.engine.pump_wanted:
                return
            self.engine.pump_wanted = False
            assert [] == self.broker.pump()
        raise AssertionError("the broker does not come to rest")

    def pass_time(self, duration_ns: int) -> None:
        """Lets time pass, and calls the broker at the times that it asks for."""
        end_ns = self.clock.now_ns() + duration_ns
        for _ in range(_ROUNDS_MAX):
            at_ns = self.engine.advance_wanted_ns
            if at_ns is None or at_ns > end_ns:
                self.clock.advance(end_ns - self.clock.now_ns())
                return
            self.clock.advance(max(at_ns - self.clock.now_ns(), 0))
            self.advance()
        raise AssertionError("the broker's time does not pass")

    def advance(self) -> None:
        """What the timer does when it goes off."""
        assert [] == self.broker.advance()
        self.engine.advance_wanted_ns = self.broker.next_deadline_ns()
        self.events_done()


class ReplicatedHost(Host):
    """A broker whose data path has a new epoch at each start."""

    epoch = 0

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def topic(self, name: str = "t") -> ReplicatedTopic:
        topic = self.broker.topic(name)
        assert isinstance(topic, ReplicatedTopic)
        return topic

    @property
    def log(self) -> TopicLog:
        store = self.topic().store
        assert store is not None
        return store.log

    def confirm(self, count: int | None = None) -> None:
        """Confirms the next `count` messages of the topic, or all."""
        log = self.log
        seq = log.next_seq if count is None else log.high_watermark + count
        self.broker.set_high_watermark("t", seq)
        self.events_done()
