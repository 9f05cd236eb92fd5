"""The node, clients, clock and disk of one run, and the model that checks them.

All events of the node pass through here: stored messages, output to clients, closed connections.
After each step, the node's statistics are compared with the model's.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

from tests.simulation.aftermath import End, adopt
from tests.simulation.connection import Connection
from tests.simulation.loop import SimulatedLoop
from tests.simulation.model import LONG_AGO, Consumer, Entry, ModelChannel, ModelTopic, Stored
from tests.simulation.node import DATA_PATH, Node
from tests.simulation.schedule import Setup
from tests.simulation.violation import ViolationError

from penstock.broker.channel import Channel
from penstock.broker.subscriber import DEADLINE_GRAIN_NS, Subscriber
from penstock.broker.topic import Topic
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.nsqd.tcp import Client
from penstock.protocol.frames import ErrorFrame, FrameReader, MessageFrame
from penstock.storage import TopicLog
from penstock.testing import FaultyFiles, ManualClock, MemoryFiles

__all__ = ["SAMPLE_PERCENT", "World"]

# On a working disk, a FIN this old is in the journal.
SAVED_AFTER_NS = 100 * MILLISECOND_NS

# A FIN this old is also synced: journalled, and then a sync timeout.
SAFE_AFTER_NS = 2_200 * MILLISECOND_NS

# nsqd notices a repaired disk within this time.
HEALED_AFTER_NS = 1_200 * MILLISECOND_NS

# nsqd notices a step of the wall clock within a sync timeout.
WALL_STEP_NOTICED_NS = 2_100 * MILLISECOND_NS

# Due messages are delivered within this time.
TIMER_GRAIN_NS = 10 * MILLISECOND_NS

SAMPLE_PERCENT = 50


class World:
    """One simulated run."""

    def __init__(
        self, setup: Setup, seed: int, trace: Callable[[str], object] | None = None
    ) -> None:
        self.setup = setup
        self.coverage: Counter[str] = Counter()
        self.trace = trace
        self.clock = ManualClock(now_ns=SECOND_NS)
        self.loop = SimulatedLoop(self.clock)
        self.memory = MemoryFiles()
        self.memory.make_folder(DATA_PATH)
        self.memory.sync_folder("")
        self.files = FaultyFiles(self.memory)
        self.topics: dict[str, ModelTopic] = {}
        self.ghosts: dict[str, ModelTopic] = {}
        """Topics whose deletion failed: they may exist again after a restart."""
        self.last_seqs: dict[str, int] = {}
        self.consumers: dict[Connection, Consumer] = {}
        self.producers: dict[int, Connection] = {}
        self.connections = 0
        self.published = 0
        self.ill_ns = LONG_AGO
        self.wall_set_ns = LONG_AGO
        self.wall_went_back = False
        self.new_channel_from: int | None = None
        self.node_is_ending = False
        self._random = Random(seed)
        self._sampled_away = 0
        self._lost_sample = False  # a channel was deleted, and its sampling with it
        self._outgoing: object = None
        self._outgoing_seen = 0
        self._struck = 0
        self._acknowledged: list[bytes] = []
        self._stored_bodies: dict[bytes, Stored] = {}
        self._ephemeral_before: dict[tuple[str, str], tuple[int, int, int]] = {}

    def start(self) -> None:
        """Start the first node; the loop must be installed."""
        self.node = self.new_node()

    def new_node(self) -> Node:
        return Node(self.setup, self.files, self.clock, self.loop, self, self._sample)

    # For the steps.

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def count(self, what: str) -> None:
        self.coverage[what] += 1

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(text)

    def connect(self, name: str) -> Connection:
        self.connections += 1
        return Connection(f"{name}{self.connections}", self.node.services, self.loop, self)

    def new_bodies(self, count: int) -> tuple[bytes, ...]:
        first, self.published = self.published, self.published + count
        return tuple(
            b"%d" % number if number % 3 else b"%d " % number + b"x" * 40
            for number in range(first, self.published)
        )

    def channels(self) -> list[ModelChannel]:
        return [channel for topic in self.topics.values() for channel in topic.channels.values()]

    def real_channel(self, channel: ModelChannel) -> Channel:
        return channel.topic.real.channels[channel.name]

    def subscriber(self, consumer: Consumer) -> Subscriber:
        subscriber = consumer.connection.server.subscriber
        assert subscriber is not None
        return subscriber

    def stored_in(self, topic: ModelTopic, first_seq: int) -> list[Stored]:
        """Messages in the log, from `first_seq` on, that the topic has given to its channels."""
        held = {message.seq for message in topic.held}
        return [
            message
            for seq, message in topic.messages.items()
            if seq >= first_seq and seq not in held
        ]

    def see_stored(self, message: Stored) -> None:
        """The messages turned out to be stored."""
        self._stored_bodies[message.body] = message

    def was_stored(self, message: Stored) -> bool:
        """Whether a message with this sequence number has been stored."""
        known = self._stored_bodies.get(message.body)
        return known is not None and known.seq == message.seq

    def is_saved(self, since_ns: int) -> bool:
        """Whether a change at this time is certainly in the journal."""
        return self._is_past(since_ns, SAVED_AFTER_NS)

    def is_safe(self, since_ns: int) -> bool:
        """Whether a change at this time is certainly synced."""
        return self._is_past(since_ns, SAFE_AFTER_NS)

    def is_disk_faulty(self) -> bool:
        """Whether the disk may still fail."""
        return not self._is_past(self.ill_ns, HEALED_AFTER_NS + SAFE_AFTER_NS)

    def _is_past(self, since_ns: int, window_ns: int) -> bool:
        if since_ns == LONG_AGO:
            return True
        healthy_ns = LONG_AGO if self.ill_ns == LONG_AGO else self.ill_ns + HEALED_AFTER_NS
        return max(since_ns, healthy_ns) + window_ns <= self.now_ns

    def fail(self, topic: ModelTopic | None) -> None:
        """A request failed; only a disk fault may cause this."""
        self._note_health()
        if not self.is_disk_faulty():
            raise ViolationError("a request failed without a disk fault")
        if topic is not None:
            topic.is_unsure = True

    def drop_connections(self) -> None:
        """Close all connections, because the process has ended."""
        if self._sampled_away:
            self._sampled_away = 0  # the model cannot tell which ones
            for consumer in self.consumers.values():
                consumer.channel.topic.is_unsure |= consumer.sampling
        for connection in (*self.consumers, *self.producers.values()):
            connection.gone = True
        self.consumers.clear()
        self.producers.clear()
        self._acknowledged.clear()
        self.new_channel_from = None
        self.loop.forget()

    # Events of the node.

    def storing(self, topic: Topic, bodies: list[bytes], due_ns: int) -> None:
        model = self.topics[topic.name]
        if not topic.ephemeral:
            model.storing = [(body, due_ns) for body in bodies]
        self.remember_ephemeral(model)

    def stored(self, topic: Topic, bodies: list[bytes], due_ns: int, first_seq: int) -> None:
        model = self.topics[topic.name]
        model.storing = []
        if first_seq <= self.last_seqs.get(topic.name, -1) and not self.wall_went_back:
            raise ViolationError(f"message number {first_seq} of {topic.name} was assigned twice")
        messages = [
            Stored(seq, body, due_ns, self.now_ns) for seq, body in enumerate(bodies, first_seq)
        ]
        self.last_seqs[topic.name] = messages[-1].seq
        model.message_count += len(messages)
        if not topic.ephemeral:
            for message in messages:
                model.messages[message.seq] = message
        for message in messages:
            self._stored_bodies[message.body] = message
        if model.is_holding:
            room = self.setup.mem_queue_size - len(model.held) if topic.ephemeral else len(messages)
            model.held += messages[: max(room, 0)]
            model.held_count += len(messages)
            self.count("state: held by the topic")
        else:
            self.give(model, messages)
            self._see_assigned()

    def _see_assigned(self) -> None:
        """Messages for a consumer that keeps up are in flight, though they are sent later."""
        connections = {connection.server: connection for connection in self.consumers}
        outgoing = self.node.broker._scheduler.outgoing
        if self._outgoing is not outgoing:
            self._outgoing, self._outgoing_seen = outgoing, 0
        for peer, frames in outgoing[self._outgoing_seen :]:
            assert isinstance(peer, Client)
            reader = FrameReader()
            reader.receive_data(b"".join(frames))
            messages = reader.next_messages(MessageFrame)
            self._see_delivery(connections[peer], messages)
            connections[peer].assigned.extend(messages)
        self._outgoing_seen = len(outgoing)

    def not_stored(self, topic: Topic, bodies: list[bytes]) -> None:
        self.topics[topic.name].storing = []
        self.count("publish: refused by the disk")

    def topology_changed(self, topic: Topic) -> None:
        model = self.topics.get(topic.name)
        if model is None or model.real is not topic:
            if self.node.broker.topics.get(topic.name) is not topic:
                return
            model = self._see_new_topic(topic)
        self.see_new_channels(model)

    def _see_new_topic(self, topic: Topic) -> ModelTopic:
        model = self.topics[topic.name] = ModelTopic(topic, self.now_ns)
        model.keeps_all = self.setup.retention_time_ns is not None
        self.count("topic: created")
        ghost = self.ghosts.pop(topic.name, None)
        if ghost is not None:
            model = self.topics[topic.name] = adopt(self, ghost, topic, End.KILL)
            model.is_unsure = True
        return model

    def see_new_channels(self, model: ModelTopic) -> None:
        """Channels were created, perhaps by a request that failed."""
        for name in model.real.channels:
            if name not in model.channels:
                self.count("channel: created")
                channel = ModelChannel(model, name, self.now_ns, self.note_state)
                model.channels[name] = channel
                model.changed_ns = self.now_ns
                first_seq, self.new_channel_from = self.new_channel_from, None
                if first_seq is not None:
                    channel.floor = first_seq
                    channel.take(self.stored_in(model, first_seq), self.now_ns, self.now_ns)
                self._ephemeral_before[model.name, name] = (0, 0, 0)
                self.release(model)

    def release(self, model: ModelTopic) -> None:
        """The topic gives held messages to its channels, unless it still holds them."""
        if not model.is_holding and model.held_count:
            held, model.held = model.held, []
            count, model.held_count = model.held_count, 0
            self.give(model, held, count)
            self.count("state: released by the topic")

    def remember_ephemeral(self, model: ModelTopic) -> None:
        """Record the state of ephemeral channels, to find out later which messages they dropped."""
        self._ephemeral_before |= {
            (model.name, name): (real.depth, real.deferred_count, self._taken(model, name))
            for name, real in model.real.channels.items()
            if real.ephemeral or model.ephemeral
        }

    def give(self, model: ModelTopic, messages: list[Stored], held: int = 0) -> None:
        """Give channels new messages, or messages that were `held`."""
        for name, channel in model.channels.items():
            channel.message_count += held or len(messages)
            if channel.ephemeral:
                sure = self.setup.mem_queue_size if held else len(messages)
                channel.take(self._kept(name, model, messages, sure), self.now_ns)
            else:
                channel.take(messages, self.now_ns)

    def _kept(
        self, name: str, model: ModelTopic, messages: list[Stored], sure: int
    ) -> Iterable[Stored]:
        """The messages that an ephemeral channel has kept: the first ones, as many as fit."""
        real = model.real.channels[name]
        depth, deferred, taken = self._ephemeral_before[model.name, name]
        queued = [message for message in messages if not message.due_ns]
        waiting = [message for message in messages if message.due_ns]
        surely_queued = sum(not message.due_ns for message in messages[:sure])
        surely_waiting = sum(message.due_ns > 0 for message in messages[:sure])
        room = max(self.setup.mem_queue_size - depth, 0)
        kept_queued, kept_waiting = real.depth - depth, real.deferred_count - deferred
        if self._taken(model, name) > taken:
            kept_queued = len(queued)  # a consumer that keeps up received all of them at once
        if kept_queued < min(surely_queued, room) or kept_waiting < surely_waiting:
            raise ViolationError(f"{name} dropped messages that would have fit")
        if kept_queued < len(queued):
            self.count("ephemeral: dropped at overflow")
        return [*queued[:kept_queued], *waiting[:kept_waiting]]

    def _taken(self, model: ModelTopic, name: str) -> int:
        """Number of messages of a channel that were, or may have been, sent to consumers."""
        channel = model.channels.get(name)
        is_sampled = channel is not None and channel.is_sampled
        return model.real.channels[name].delivered_count + self._sampled_away * is_sampled

    # Events of clients.

    def acknowledged(self, bodies: tuple[bytes, ...]) -> None:
        self._acknowledged += bodies

    def delivered(self, connection: Connection, messages: list[MessageFrame]) -> None:
        assigned = connection.assigned
        while messages and assigned and messages[0] == assigned[0]:
            assigned.popleft()
            messages = messages[1:]
        if messages:
            self._see_delivery(connection, messages)

    def _see_delivery(self, connection: Connection, messages: list[MessageFrame]) -> None:
        consumer = self.consumers.get(connection)
        if consumer is None:
            raise ViolationError(f"{connection.name} was sent a message without a subscription")
        channel, now_ns, wall_ns = consumer.channel, self.now_ns, self.clock.wall_ns()
        for message in messages:
            if self.trace is not None:
                attempts = f", attempt {message.attempts}" if message.attempts > 1 else ""
                self.say(f"    {connection.name} <- {message.body.decode()}{attempts}")
            channel.deliver(consumer, message, now_ns, wall_ns)
        if len(consumer.in_flight) > consumer.rdy:
            self._apply_timeouts_of(channel, consumer)
            if len(consumer.in_flight) > consumer.rdy:
                raise ViolationError(f"{connection.name} was sent more than its RDY {consumer.rdy}")

    def refused(self, connection: Connection, error: ErrorFrame) -> None:
        self.say(f"    {connection.name} <- {error.code} {error.detail}")
        connection.expected_replies.clear()
        self._note_health()
        channel_moves = "is moved by commits" in error.detail
        if not error.code.endswith("_FAILED") or not (self.is_disk_faulty() or channel_moves):
            raise ViolationError(f"{connection.name} was refused: {error.code} {error.detail}")
        self.count(f"refused: {error.code}")

    def left(self, connection: Connection) -> None:
        consumer = self.consumers.pop(connection, None)
        if consumer is None or self.node_is_ending:
            return
        channel = consumer.channel
        channel.consumers.remove(consumer)
        if not self.setup.requeue_on_disconnect:
            if consumer.in_flight:
                channel.departed.append(consumer)
                self.count("state: left in flight by a disconnected consumer")
        else:
            self._requeue_all(channel, consumer)
        if channel.is_deleted_with_consumers and not channel.consumers and not channel.deleted:
            self.forget_channel(channel)
            if channel.topic.ephemeral and not channel.topic.channels:
                del self.topics[channel.topic.name]

    def _requeue_all(self, channel: ModelChannel, consumer: Consumer) -> None:
        """Requeue the messages in flight, and count them as timed out."""
        for entry in list(consumer.in_flight.values()):
            if entry.may_time_out(self.now_ns):
                channel.time_out(entry, self.now_ns)
            else:
                channel.timeout_count += 1
                self.requeue_entry(channel, entry)
                self.count("state: requeued on disconnect")

    def requeue_entry(self, channel: ModelChannel, entry: Entry, due_ns: int = 0) -> None:
        self._note_health()  # The disk may have failed since the last step.
        channel.requeue_entry(entry, self.now_ns, self.is_saved, due_ns)

    def stop_tracking_sampling(self, channel: ModelChannel) -> None:
        """Sampled messages can no longer be distinguished from queued ones."""
        self._lost_sample |= channel.is_sampled

    def forget_channel(self, channel: ModelChannel) -> None:
        """The channel was deleted."""
        channel.deleted = True
        channel.topic.channels.pop(channel.name, None)
        channel.topic.changed_ns = self.now_ns
        self._note_health()
        self.stop_tracking_sampling(channel)
        if channel.is_deleted_with_consumers and self.is_disk_faulty():
            # If the journal cannot save the messages that the topic now holds, no request fails.
            channel.topic.is_unsure = True
        self.count("channel: deleted")

    # After every step.

    def update_model(self, *, at_rest: bool) -> None:
        """Update the model after a step, and check everything."""
        self._note_health()
        self._see_acknowledgements()
        self.apply_timeouts()
        self.apply_sampling()
        self.see_trims()
        self._check_counts()
        if at_rest:
            self._check_deliverable_messages()

    def record_saved_changes(self) -> None:
        """Mark changes as saved or synced when enough time has passed."""
        for topic in self.topics.values():
            for message in topic.messages.values():
                if self.is_safe(message.stored_ns):
                    message.stored_ns = LONG_AGO
            for channel in topic.channels.values():
                self._remember_channel(channel)
            if self.is_safe(topic.changed_ns):
                topic.changed_ns = LONG_AGO
                topic.dropped.clear()

    def _remember_channel(self, channel: ModelChannel) -> None:
        for seqs, is_past in ((channel.finished, self.is_saved), (channel.closed, self.is_safe)):
            for seq in [seq for seq, (_, at_ns) in seqs.items() if is_past(at_ns)]:
                del seqs[seq]
        for entry in channel.open.values():
            if self.is_saved(entry.noted_ns):
                entry.noted_ns = LONG_AGO
            if self.is_safe(entry.since_ns):
                entry.since_ns = LONG_AGO
        if self.is_safe(channel.placed_ns):
            channel.placed_ns = LONG_AGO

    def _note_health(self) -> None:
        struck = self.files.struck
        if len(struck) > self._struck:
            for operation, path in struck[self._struck :]:
                self.count(f"fault: {operation} {_place(path)}")
            self._struck = len(struck)
            self.ill_ns = self.now_ns
        elif self.node.is_syncing or self.files.has_faults:
            self.ill_ns = self.now_ns

    def _see_acknowledgements(self) -> None:
        for body in self._acknowledged:
            message = self._stored_bodies.get(body)
            if message is None:
                raise ViolationError(f"{body!r} was acknowledged, but is not stored")
            message.acknowledged = True
        self._acknowledged.clear()

    def apply_timeouts(self) -> None:
        """Requeue messages that the node no longer has in flight."""
        for channel in self.channels():
            for consumer in channel.holders:
                if consumer.in_flight:
                    self._apply_timeouts_of(channel, consumer)
            if channel.departed:
                channel.departed = [gone for gone in channel.departed if gone.in_flight]

    def _apply_timeouts_of(self, channel: ModelChannel, consumer: Consumer) -> None:
        now_ns = self.now_ns
        in_flight = self.subscriber(consumer).in_flight
        for message_id, entry in list(consumer.in_flight.items()):
            if entry.deadline_ns - DEADLINE_GRAIN_NS <= now_ns and message_id not in in_flight:
                channel.time_out(entry, now_ns)
            elif entry.deadline_ns + DEADLINE_GRAIN_NS < now_ns:
                raise ViolationError(f"{entry.message.body!r} should have timed out long ago")

    def _sample(self) -> float:
        drawn = self._random.random()
        self._sampled_away += drawn * 100 >= SAMPLE_PERCENT
        return drawn

    def apply_sampling(self) -> None:
        """Finish messages that a sampling consumer skipped; the node tells which."""
        if not self._sampled_away:
            return
        self.apply_timeouts()  # otherwise messages requeued in the meantime would be missing
        left, self._sampled_away = self._sampled_away, 0
        for channel in self.channels():
            if channel.is_sampled:
                real = self.real_channel(channel)
                waiting = [*real.peek(10_000), *real.peek_deferred(10_000)]
                bodies = {each.frame[34:] for each in waiting}
                for entry in channel.queued():
                    if entry.message.body not in bodies:
                        entry.delivered = True  # skipping counts as a first delivery in the order
                        channel.finish(entry, self.now_ns)
                        left -= 1
                        self.count("state: sampled away")
        is_known, self._lost_sample = not self._lost_sample, False
        if left and is_known:
            raise ViolationError("sampling skipped a wrong number of messages")

    def see_trims(self) -> None:
        """Trimmed messages must be finished in all channels, and not retained."""
        for topic in self.topics.values():
            log = topic.real.log
            if isinstance(log, TopicLog) and topic.log_seen != (log.byte_size, log.next_seq):
                topic.log_seen = log.byte_size, log.next_seq
                if sum(each.next_seq - each.first_seq for each in log.segments) < len(
                    topic.messages
                ):
                    self._see_trim(topic, log)

    def _see_trim(self, topic: ModelTopic, log: TopicLog) -> None:
        kept = {
            seq for segment in log.segments for seq in range(segment.first_seq, segment.next_seq)
        }
        for seq in [seq for seq in topic.messages if seq not in kept]:
            message = topic.messages.pop(seq)
            if topic.is_needed(message):
                raise ViolationError(
                    f"{message.body!r} was trimmed from the log, but is still needed"
                )
            if topic.keeps_all:
                raise ViolationError(f"{message.body!r} was trimmed, but must be retained")
            self.count("state: trimmed")

    def _check_counts(self) -> None:
        broker = self.node.broker
        if self.topics.keys() != broker.topics.keys():
            raise ViolationError(f"topics are {[*broker.topics]}, expected {[*self.topics]}")
        for topic in self.topics.values():
            real = topic.real
            _equal(topic.name, "depth", real.depth, len(topic.held))
            _equal(topic.name, "message_count", real.message_count, topic.message_count)
            if topic.channels.keys() != real.channels.keys():
                raise ViolationError(
                    f"{topic.name} has channels {[*real.channels]}, expected {[*topic.channels]}"
                )
            for channel in topic.channels.values():
                self._check_channel(channel, real.channels[channel.name])

    def _check_channel(self, channel: ModelChannel, real: Channel) -> None:
        name, in_flight = channel.name, channel.in_flight_count
        _equal(name, "in_flight_count", real.in_flight_count, in_flight)
        depth, deferred = real.depth, real.deferred_count
        _equal(name, "depth and deferred_count", depth + deferred, len(channel.open) - in_flight)
        if deferred:
            waiting = sum(
                entry.holder is None and entry.due_ns > 0 for entry in channel.open.values()
            )
            if deferred > waiting:
                raise ViolationError(
                    f"deferred_count of {name} is {deferred}, at most {waiting} can be"
                )
        _equal(name, "message_count", real.message_count, channel.message_count)
        _equal(name, "requeue_count", real.requeue_count, channel.requeue_count)
        _equal(name, "timeout_count", real.timeout_count, channel.timeout_count)
        _equal(name, "delivered_count", real.delivered_count, channel.delivered_count)
        for consumer in channel.consumers:
            ours = self.subscriber(consumer).in_flight
            if len(ours) != len(consumer.in_flight) or not all(
                message_id in ours for message_id in consumer.in_flight
            ):
                raise ViolationError(f"{consumer.connection.name} has other messages in flight")

    def _check_deliverable_messages(self) -> None:
        """All messages that can be delivered have been delivered."""
        for connection in self.consumers:
            if connection.assigned:
                body = connection.assigned[0].body
                raise ViolationError(
                    f"{body!r} was handed out to {connection.name}, but never sent"
                )
        self._check_deferred_count()
        wall_ns = self.clock.wall_ns() - TIMER_GRAIN_NS
        wall_is_known = self.wall_set_ns + WALL_STEP_NOTICED_NS <= self.now_ns
        for channel in self.channels():
            if channel.paused or channel.committing:
                continue
            if any(consumer.can_take_more for consumer in channel.consumers):
                for entry in channel.queued():
                    if not entry.due_ns or (entry.due_ns <= wall_ns and wall_is_known):
                        raise ViolationError(
                            f"{entry.message.body!r} waits in {channel.name}, a consumer is ready"
                        )

    def _check_deferred_count(self) -> None:
        """A deferred message counts as deferred, wherever the channel reads in the log."""
        if self.wall_went_back or self.is_disk_faulty():
            return
        wall_ns = self.clock.wall_ns()
        for channel in self.channels():
            if channel.committing or channel.ephemeral:
                continue
            waiting = sum(
                entry.holder is None and entry.due_ns > wall_ns for entry in channel.open.values()
            )
            count = self.real_channel(channel).deferred_count
            if count < waiting:
                raise ViolationError(
                    f"deferred_count of {channel.name} is {count}, expected at least {waiting}"
                )

    def note_state(self, what: str) -> None:
        self.coverage[f"state: {what}"] += 1


def _equal(name: str, what: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ViolationError(f"{what} of {name} is {actual}, expected {expected}")


def _place(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.startswith("cursors."):
        return "cursors"
    if name.startswith("nsqd.dat"):
        return "nsqd.dat"
    if name.startswith("penstock.format"):
        return "penstock.format"
    for suffix in (".log", ".index"):
        if suffix in name:
            return f"*{suffix}"
    return "folder"
