"""The whole broker against a plain model: one topic, two channels, a few consumers, any mishap.

After every step: nothing that was acknowledged is lost, every message of a channel is in exactly
one place, no consumer has more than its RDY, first deliveries are in order, nothing is delivered
before its time, attempts are right, and a timeout is neither early nor late.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.broker.fakes import Host
from tests.broker.model import Delivery, ModelChannel, ModelConsumer

from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import DEADLINE_GRAIN_NS
from penstock.broker.topic import Topic
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.protocol import frames as wire
from penstock.storage import LogSettings, Progress, TopicLog

TIMEOUT_NS = 4 * SECOND_NS
TIMEOUT_MAX_NS = 10 * SECOND_NS
CHANNELS = ["c", "d"]
NODE_IDS = [0, 7, 900]
MEM_QUEUE_SIZES = [0, 1, 3, 100]

# How often each thing happens, in a hundred steps. One rule for all of them, because as rules of
# their own they would be equally likely, and hardly a message would live to be delivered.
STEPS = [
    *["publish"] * 18,
    *["fin"] * 14,
    *["req"] * 10,
    *["pump"] * 10,
    *["pump_once"] * 5,
    *["pass_time"] * 9,
    *["subscribe"] * 6,
    *["ready"] * 6,
    *["touch"] * 4,
    *["leave"] * 3,
    *["block"] * 3,
    *["operate"] * 5,
    *["move"] * 4,
    *["cancel"] * 2,
    *["requeue_now"] * 3,
    *["save_progress"] * 4,
    *["restart"] * 1,
    *["crash"] * 2,
]


class BrokerAgainstAModel(RuleBasedStateMachine):
    @initialize(
        mem_queue_size=st.sampled_from(MEM_QUEUE_SIZES),
        requeue_on_disconnect=st.booleans(),
        max_bytes_per_file=st.sampled_from([200, 100_000]),
        pumps_by_itself=st.booleans(),
        consumers=st.lists(st.sampled_from(CHANNELS), max_size=3),
    )
    def begin(
        self,
        mem_queue_size: int,
        requeue_on_disconnect: bool,
        max_bytes_per_file: int,
        pumps_by_itself: bool,
        consumers: list[str],
    ) -> None:
        self.requeue_on_disconnect = requeue_on_disconnect
        self.pumps_by_itself = pumps_by_itself
        self.host = Host(
            BrokerSettings(
                mem_queue_size=mem_queue_size,
                max_msg_timeout_ns=TIMEOUT_MAX_NS,
                requeue_on_disconnect=requeue_on_disconnect,
            ),
            log_settings=LogSettings(max_bytes_per_file=max_bytes_per_file),
            pumps_by_itself=False,
        )
        self.host.broker.topic("t")
        self.seqs: dict[str, int] = {}
        self.published_due_ns: dict[str, int] = {}
        self.held: list[str] = []
        self.paused = False
        self.channels: dict[str, ModelChannel] = {}
        for name in consumers:
            self.subscribe_to(name, rdy=3)

    @rule(data=st.data(), what=st.sampled_from(STEPS))
    def step(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)
        if self.pumps_by_itself:
            self.pump(data)

    def teardown(self) -> None:
        """In the end every message that was not finished can still be had."""
        if not hasattr(self, "host"):
            return
        self.operate_topic("unpause")
        for name, channel in self.channels.items():
            for consumer in channel.consumers:
                consumer.real.leave()
            self.topic.channels[name].pause(False)
        self.host.pass_time(2 * TIMEOUT_MAX_NS)
        for name, channel in self.channels.items():
            last = self.host.consumer("t", name, rdy=10_000)
            self.host.pump()
            self.host.pass_time(2 * TIMEOUT_MAX_NS)
            self.host.pump()

            assert sorted(channel.open) == sorted(last.take())
            last.leave()

    # What must hold.

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        assert len(self.held) == self.topic.depth
        assert sorted(self.channels) == sorted(self.topic.channels)
        for name, channel in self.channels.items():
            real = self.topic.channels[name]
            assert len(channel.in_flight) == real.in_flight_count
            assert len(channel.open) - len(channel.in_flight) == real.depth + real.deferred_count
            assert 0 <= real.backend_depth <= real.depth
            assert real.depth == len(real.peek(10_000))
            assert real.deferred_count == len(real.peek_deferred(10_000))
            assert real.in_flight_count == len(real.peek_in_flight(10_000))

    @invariant()
    def every_consumer_has_what_it_was_given(self) -> None:
        for channel in self.channels.values():
            for consumer in channel.consumers:
                expected = {consumer.real.id_of(body) for body in consumer.in_flight}
                in_flight = consumer.real.subscriber.in_flight
                assert expected == {*in_flight.fresh, *in_flight.timed}

    @invariant()
    def no_open_message_is_written_down_as_finished(self) -> None:
        for name, channel in self.channels.items():
            progress = self.progress(name)
            for body in channel.open:
                assert not progress.is_finished(self.seqs[body], self.seqs[body] + 1)

    # What clients do.

    def publish(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 5))
        defer_ns = data.draw(st.sampled_from([0, 0, 0, 1, 6])) * SECOND_NS
        seq = self.topic.log.next_seq
        bodies = [str(len(self.seqs) + number) for number in range(count)]
        self.host.publish("t", *bodies, defer_ns=defer_ns)
        for number, body in enumerate(bodies):
            self.seqs[body] = seq + number
            self.published_due_ns[body] = self.due_ns(defer_ns)
        self.held += bodies
        self.release()
        self.host.broker.deliver()  # who keeps up is given it at once
        self.see_deliveries()

    def subscribe(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(CHANNELS))
        self.subscribe_to(name, data.draw(st.sampled_from([1, 2, 300])))

    def ready(self, data: st.DataObject) -> None:
        if (drawn := self.draw_consumer(data)) is not None:
            drawn[1].real.rdy(data.draw(st.integers(0, 4)))

    def block(self, data: st.DataObject) -> None:
        """Or unblock, if it has been blocked."""
        if (drawn := self.draw_consumer(data)) is not None:
            consumer = drawn[1].real
            consumer.subscriber.blocked = not consumer.subscriber.blocked
            consumer.channel.ready(consumer.subscriber)

    def leave(self, data: st.DataObject) -> None:
        if (drawn := self.draw_consumer(data)) is None:
            return
        channel, consumer = drawn
        consumer.real.leave()
        channel.consumers.remove(consumer)
        if self.requeue_on_disconnect:
            for body in consumer.in_flight:
                channel.put_back(body)
        elif consumer.in_flight:
            channel.departed.append(consumer)

    def fin(self, data: st.DataObject) -> None:
        """Some of them perhaps more than once, which is refused."""
        if (drawn := self.draw_consumer(data, lambda each: bool(each.in_flight))) is None:
            return
        channel, consumer = drawn
        bodies = data.draw(st.lists(st.sampled_from(sorted(consumer.in_flight)), min_size=1))
        chosen = [consumer.real.id_of(body) for body in bodies]
        refusals = consumer.real.channel.finish(consumer.real.subscriber, chosen)
        assert len(bodies) - len(set(bodies)) == len(refusals)
        for body in set(bodies):
            del consumer.in_flight[body]
            channel.finished.add(body)

    def req(self, data: st.DataObject) -> None:
        if (drawn := self.draw_consumer(data, lambda each: bool(each.in_flight))) is None:
            return
        channel, consumer = drawn
        body = data.draw(st.sampled_from(sorted(consumer.in_flight)))
        delay_ns = data.draw(st.sampled_from([0, 0, 2, 7])) * SECOND_NS
        consumer.real.req(body, delay_ns)
        del consumer.in_flight[body]
        channel.put_back(body, self.due_ns(delay_ns))

    def touch(self, data: st.DataObject) -> None:
        if (drawn := self.draw_consumer(data, lambda each: bool(each.in_flight))) is None:
            return
        _, consumer = drawn
        body = data.draw(st.sampled_from(sorted(consumer.in_flight)))
        consumer.real.touch(body)
        delivery = consumer.in_flight[body]
        delivery.deadline_ns = min(
            self.host.clock.now_ns() + TIMEOUT_NS, delivery.delivered_ns + TIMEOUT_MAX_NS
        )

    # What operators do.

    def operate(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(["pause", "unpause", "unpause", "empty", "delete"]))
        name = data.draw(st.sampled_from([None, *sorted(self.channels)]))
        if name is None:
            self.operate_topic(verb)
        else:
            self.operate_channel(verb, name)

    def operate_topic(self, verb: str) -> None:
        match verb:
            case "pause" | "unpause":
                self.paused = verb == "pause"
                self.topic.pause(self.paused)
                self.release()
            case "empty":
                self.topic.empty()
                self.held.clear()

    def operate_channel(self, verb: str, name: str) -> None:
        channel, real = self.channels[name], self.topic.channels[name]
        match verb:
            case "pause" | "unpause":
                channel.paused = verb == "pause"
                real.pause(channel.paused)
            case "empty":
                real.empty(self.topic.owed_seq)
                channel.empty()
            case "delete":
                self.host.broker.delete_channel(self.topic, name)
                assert all(consumer.real.gone for consumer in channel.consumers)
                del self.channels[name]

    def move(self, data: st.DataObject) -> None:
        """Puts a channel somewhere else: a new one, one with consumers, or one without."""
        name = data.draw(st.sampled_from(CHANNELS))
        seq = data.draw(st.integers(self.topic.log.first_seq, self.topic.released_seq))
        channel = self.channels.get(name)
        if channel is None:
            self.topic.channel(name, seq)
            channel = self.channels[name] = ModelChannel()
            self.begin_at(channel, seq)
            self.release()
        elif channel.consumers:
            self.topic.channels[name].seek(seq)
            self.begin_at(channel, seq)
        else:
            floor = self.topic.channels[name].commit(seq)
            assert floor >= min(seq, self.topic.log.next_seq)
            channel.commit({body for body in channel.released if self.seqs[body] < seq})

    def begin_at(self, channel: ModelChannel, seq: int) -> None:
        """What was trimmed does not come again."""
        gaps = self.log.gaps(seq, self.topic.released_seq)
        released = [body for body in self.seqs if self.seqs[body] < self.topic.released_seq]
        released = [body for body in released if body not in self.held]
        finished = {
            body
            for body in released
            if self.seqs[body] < seq or any(first <= self.seqs[body] < end for first, end in gaps)
        }
        channel.begin_at(released, finished, self.published_due_ns)

    def cancel(self, data: st.DataObject) -> None:
        """One that waits for a time, as far as we can see."""
        name = data.draw(st.sampled_from(sorted(self.channels) or [""]))
        waiting = self.topic.channels[name].peek_deferred(100) if name else []
        if not waiting:
            return
        frame = data.draw(st.sampled_from(waiting)).frame
        real, wall_ns = self.topic.channels[name], self.host.clock.wall_ns()
        assert real.cancel(wire.message_id(frame), wall_ns)
        assert not real.cancel(wire.message_id(frame), wall_ns)
        body = wire.body(frame).decode()
        self.channels[name].finished.add(body)
        self.channels[name].finished_saved.add(body)

    def requeue_now(self, data: st.DataObject) -> None:
        """One that somebody has, or that waits for a time, as far as we can see."""
        name = data.draw(st.sampled_from(sorted(self.channels) or [""]))
        if not name:
            return
        real, model = self.topic.channels[name], self.channels[name]
        in_flight = [frame for _, frame, _ in real.peek_in_flight(100)]
        deferred = [waiting.frame for waiting in real.peek_deferred(100)]
        if not in_flight + deferred:
            return
        frame = data.draw(st.sampled_from(in_flight + deferred))
        requeue_count = real.requeue_count
        assert real.requeue_now(wire.message_id(frame), self.host.clock.wall_ns())
        assert requeue_count + (frame in in_flight) == real.requeue_count
        body = wire.body(frame).decode()
        for consumer in model.consumers + model.departed:
            consumer.in_flight.pop(body, None)
        model.put_back(body)
        if frame in deferred:
            model.noted_saved[body] = model.noted[body]

    # What the daemon does.

    def pump_once(self, data: st.DataObject) -> None:
        if self.host.engine.pump_wanted:
            self.host.engine.pump_wanted = False
            assert [] == self.host.broker.pump()
            self.see_deliveries()

    def pump(self, data: st.DataObject) -> None:
        """After it, nobody waits who could be given something."""
        self.host.pump()
        self.see_deliveries()
        for name, channel in self.channels.items():
            ready = [each for each in channel.consumers if each.real.subscriber.capacity() > 0]
            assert channel.paused or not ready or self.topic.channels[name].depth == 0

    def pass_time(self, data: st.DataObject) -> None:
        milliseconds = data.draw(st.sampled_from([0, 1, 7, 500, 1000, 3000, 5000]))
        self.host.pass_time(milliseconds * MILLISECOND_NS)
        for channel in self.channels.values():
            for consumer in channel.consumers + channel.departed:
                self.see_timeouts(channel, consumer)
            channel.departed = [gone for gone in channel.departed if gone.in_flight]

    def save_progress(self, data: st.DataObject) -> None:
        self.host.save_progress()
        for channel in self.channels.values():
            channel.save()

    def restart(self, data: st.DataObject) -> None:
        for channel in self.channels.values():
            channel.stop()
        self.host.settings = self.draw_settings(data)
        self.host.restart()
        self.come_back()

    def crash(self, data: st.DataObject) -> None:
        self.host.settings = self.draw_settings(data)
        self.host.crash()
        self.come_back()

    def come_back(self) -> None:
        """The daemon keeps pauses in a file of its own, and consumers connect again."""
        assert [] == self.host.broker.issues
        self.topic.pause(self.paused)
        for name, channel in self.channels.items():
            self.topic.channels[name].pause(channel.paused)
            channel.consumers.clear()
            channel.departed.clear()
            self.see_what_was_left(channel, self.progress(name))
            self.subscribe_to(name, rdy=3)

    # What is to be seen of it.

    def see_deliveries(self) -> None:
        subscribed = {
            consumer.real: (channel, consumer)
            for channel in self.channels.values()
            for consumer in channel.consumers
        }
        for real, frames in self.host.deliveries:
            for frame in frames:
                self.see_delivery(*subscribed[real], frame)
        self.host.deliveries.clear()

    def see_delivery(self, channel: ModelChannel, consumer: ModelConsumer, frame: bytes) -> None:
        body = wire.body(frame).decode()
        assert body in channel.open
        assert body not in channel.in_flight
        assert not channel.paused
        assert channel.due_ns[body] <= self.host.clock.wall_ns()
        channel.attempts[body] += 1
        assert channel.attempts[body] == wire.attempts(frame)
        if body not in channel.delivered and not self.published_due_ns[body]:
            assert self.seqs[body] > channel.last_first_delivery
            channel.last_first_delivery = self.seqs[body]
        channel.delivered.add(body)
        now_ns = self.host.clock.now_ns()
        consumer.in_flight[body] = Delivery(now_ns, now_ns + TIMEOUT_NS)

    def see_timeouts(self, channel: ModelChannel, consumer: ModelConsumer) -> None:
        now_ns = self.host.clock.now_ns()
        for body, delivery in list(consumer.in_flight.items()):
            if consumer.real.id_of(body) in consumer.real.subscriber.in_flight:
                assert now_ns < delivery.deadline_ns + DEADLINE_GRAIN_NS
            else:
                assert delivery.deadline_ns - DEADLINE_GRAIN_NS <= now_ns
                del consumer.in_flight[body]
                channel.put_back(body)

    def see_what_was_left(self, channel: ModelChannel, progress: Progress) -> None:
        for body in channel.released:
            seq = self.seqs[body]
            if progress.is_finished(seq, seq + 1):
                assert body in channel.finished
                continue
            assert body not in channel.finished_saved
            channel.finished.discard(body)
            note = progress.retry_states.get(seq)
            attempts = note.attempts if note else 0
            assert channel.noted_saved.get(body, 0) <= attempts <= channel.attempts[body]
            channel.attempts[body] = channel.noted[body] = attempts
            channel.due_ns[body] = note.due_ns if note else self.published_due_ns[body]

    # Within.

    @property
    def topic(self) -> Topic:
        return self.host.broker.topics["t"]

    @property
    def log(self) -> TopicLog:
        assert isinstance(self.topic.log, TopicLog)
        return self.topic.log

    def progress(self, name: str) -> Progress:
        assert self.topic.store is not None
        return self.topic.store.cursors.progress[name]

    def due_ns(self, delay_ns: int) -> int:
        return self.host.clock.wall_ns() + delay_ns if delay_ns else 0

    def subscribe_to(self, name: str, rdy: int) -> None:
        consumer = self.host.consumer("t", name, rdy=rdy, msg_timeout_ns=TIMEOUT_NS)
        channel = self.channels.setdefault(name, ModelChannel())
        channel.consumers.append(ModelConsumer(consumer))
        self.release()

    def release(self) -> None:
        """The topic gives its channels what it holds, unless it is paused or has none."""
        if self.paused or not self.channels:
            return
        for channel in self.channels.values():
            for body in self.held:
                channel.release(body, self.published_due_ns[body])
        self.held = []

    def draw_settings(self, data: st.DataObject) -> BrokerSettings:
        """Those of a new process may differ from those of the last."""
        return replace(
            self.host.settings,
            node_id=data.draw(st.sampled_from(NODE_IDS)),
            mem_queue_size=data.draw(st.sampled_from(MEM_QUEUE_SIZES)),
        )

    def draw_consumer(
        self, data: st.DataObject, suits: Callable[[ModelConsumer], bool] = lambda _: True
    ) -> tuple[ModelChannel, ModelConsumer] | None:
        suitable = [
            (channel, consumer)
            for channel in self.channels.values()
            for consumer in channel.consumers
            if suits(consumer)
        ]
        return suitable[data.draw(st.integers(0, len(suitable) - 1))] if suitable else None


# Passing takes some seconds. Failing may take minutes, to find a short example, and is worth them.
TestBrokerAgainstAModel = pytest.mark.timeout(600)(BrokerAgainstAModel.TestCase)
TestBrokerAgainstAModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
