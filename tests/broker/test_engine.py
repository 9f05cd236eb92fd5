"""The engine's turn, timers and housekeeping, on a simulated loop and clock."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.broker.fakes import Recorder
from tests.simulation.loop import SimulatedLoop

from penstock.broker.engine import SAVE_SECONDS, Engine
from penstock.broker.publishing import TurnBatch
from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.logs import Logger, LogLevel
from penstock.storage import DataPath, GroupCommit, LogSettings
from penstock.testing import FaultyFiles, ManualClock, MemoryFiles
from penstock.testing.bugs import raise_bug

MSG_TIMEOUT_NS = 60 * SECOND_NS
HOUSEKEEPING_SECONDS = 2.0


@dataclass
class Topology:
    """A listener that records the names of created topics."""

    created: list[str] = field(default_factory=list)

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None: ...

    def topic_created(self, topic: Topic) -> None:
        self.created.append(topic.name)


class Node:
    """An engine on files in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ns=SECOND_NS)
        self.loop = SimulatedLoop(self.clock)
        self.files = FaultyFiles(MemoryFiles())
        self.topology = Topology()
        self.commit = GroupCommit(self.loop.call_soon, self.loop.call_later)
        self.data_path = DataPath.open("", LogSettings(), self.files)
        self.engine = Engine(
            BrokerSettings(),
            self.data_path,
            self.loop,
            self.clock,
            sample=lambda: 0.0,
            commit=self.commit,
            listener=self.topology,
            log=Logger("", LogLevel.FATAL),
            report_bug=raise_bug,
            housekeeping_seconds=HOUSEKEEPING_SECONDS,
        )
        self.broker = self.engine.broker

    def publish(self, *bodies: bytes, topic: str = "t") -> TurnBatch:
        batch = self.engine.publisher.publish(self.broker.topic_cache[topic], [*bodies])
        assert batch is not None
        return batch

    def subscribe(self, *, rdy: int) -> Recorder:
        recorder = Recorder()
        subscriber = Subscriber(recorder, MSG_TIMEOUT_NS)
        channel = self.broker.subscribe("t", "c", subscriber)
        subscriber.rdy = rdy
        channel.ready(subscriber)
        return recorder

    def close(self) -> None:
        self.engine.stop()
        self.commit.close()
        self.broker.close()
        self.data_path.close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


def test_publishes_of_a_turn_are_stored_and_delivered_at_its_end(node: Node) -> None:
    consumer = node.subscribe(rdy=10)
    first, second = node.publish(b"a"), node.publish(b"b")
    assert first is second
    assert not first.is_safe
    assert [] == consumer.bodies

    node.loop.run_ready()

    assert first.is_safe
    assert ["a", "b"] == consumer.bodies


def test_message_is_redelivered_after_its_timeout(node: Node) -> None:
    consumer = node.subscribe(rdy=1)
    node.publish(b"a")
    node.loop.pass_time(MSG_TIMEOUT_NS - 10 * MILLISECOND_NS)
    assert [1] == consumer.attempts

    node.loop.pass_time(30 * MILLISECOND_NS)

    assert [1, 2] == consumer.attempts


def test_stop_stores_publishes_and_cancels_timers(node: Node) -> None:
    consumer = node.subscribe(rdy=1)
    node.publish(b"a")
    node.loop.run_ready()
    batch = node.publish(b"b")
    node.broker.exit()
    node.engine.stop()
    assert batch.is_safe

    node.loop.pass_time(2 * MSG_TIMEOUT_NS)

    assert [1] == consumer.attempts


def test_progress_is_journalled_within_the_interval(node: Node) -> None:
    subscriber = Subscriber(Recorder(), MSG_TIMEOUT_NS)
    channel = node.broker.subscribe("t", "c", subscriber)
    subscriber.rdy = 1
    channel.ready(subscriber)
    node.publish(b"a")
    node.loop.run_ready()
    store = node.broker.topics["t"].store
    assert store is not None
    channel.finish(subscriber, [*subscriber.in_flight.fresh])
    floor = store.cursors.progress["c"].floor

    node.loop.pass_time(int(SAVE_SECONDS * SECOND_NS) + MILLISECOND_NS)

    assert floor + 1 == store.cursors.progress["c"].floor


def test_housekeeping_requests_an_fsync_of_unsynced_logs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[object] = []
    monkeypatch.setattr(node.commit, "request_if_unsynced", lambda *parts: requested.append(parts))
    node.publish(b"a")
    node.loop.run_ready()
    node.engine.start()
    assert 1 == len(requested)

    node.loop.pass_time(int(HOUSEKEEPING_SECONDS * SECOND_NS) + MILLISECOND_NS)

    assert 2 == len(requested)


def test_listener_is_told_of_new_topics(node: Node) -> None:
    node.publish(b"a", topic="new")

    assert ["new"] == node.topology.created
