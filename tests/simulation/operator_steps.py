"""Steps of operators, as the HTTP API runs them.

Earlier publishes are written first, and durable changes are saved before the response. If the disk
fails, the operator gets an error and the change may be done or not; the model then inspects the
node.
"""

from collections.abc import Callable

from tests.simulation.client_steps import CHANNELS
from tests.simulation.model import Entry, ModelChannel, ModelTopic
from tests.simulation.schedule import Step
from tests.simulation.violation import ViolationError
from tests.simulation.world import World

from penstock.common.errors import StorageError
from penstock.storage import Retention, TopicLog
from penstock.testing import SimulatedCrash

__all__ = ["OPERATOR_STEPS"]


def pause_topic(world: World, step: Step) -> str | None:
    return _pause_topic(world, step, paused=True)


def unpause_topic(world: World, step: Step) -> str | None:
    return _pause_topic(world, step, paused=False)


def _pause_topic(world: World, step: Step, *, paused: bool) -> str | None:
    topic = _topic(world, step.a)
    if topic is None:
        return None
    world.remember_ephemeral(topic)

    def verb() -> None:
        topic.real.pause(paused)
        world.node.save_metadata()

    outcome = _operate(world, topic, verb)
    topic.paused = topic.real.paused
    topic.changed_ns = world.now_ns
    world.release(topic)
    world.count(f"topic: {'paused' if paused else 'unpaused'}")
    return f"{'pause' if paused else 'unpause'} {topic.name}{outcome}"


def pause_channel(world: World, step: Step) -> str | None:
    return _pause_channel(world, step, paused=True)


def unpause_channel(world: World, step: Step) -> str | None:
    return _pause_channel(world, step, paused=False)


def _pause_channel(world: World, step: Step, *, paused: bool) -> str | None:
    channel = _channel(world, step.a)
    if channel is None:
        return None

    def verb() -> None:
        world.real_channel(channel).pause(paused)
        world.node.save_metadata()

    outcome = _operate(world, channel.topic, verb)
    channel.paused = paused
    channel.topic.changed_ns = world.now_ns
    world.count(f"channel: {'paused' if paused else 'unpaused'}")
    return f"{'pause' if paused else 'unpause'} {_name(channel)}{outcome}"


def empty_topic(world: World, step: Step) -> str | None:
    topic = _topic(world, step.a)
    if topic is None:
        return None
    had = len(topic.held)
    outcome = _operate(world, topic, topic.real.empty)
    if had:
        world.count("topic: emptied of held messages")
    for channel in topic.channels.values():
        channel.floor = max(channel.floor, topic.real.released_seq)
    topic.held, topic.held_count = [], 0
    topic.changed_ns = world.now_ns
    return f"empty {topic.name} of {had}{outcome}"


def empty_channel(world: World, step: Step) -> str | None:
    channel = _channel(world, step.a)
    if channel is None:
        return None
    topic, real = channel.topic, world.real_channel(channel)
    outcome = _operate(world, topic, lambda: real.empty(topic.real.owed_seq))
    if not outcome:
        had = "deferred " if any(entry.due_ns for entry in channel.queued()) else ""
        world.count(f"channel: emptied of {had}messages" if channel.open else "channel: emptied")
        channel.forget_in_flight()
        channel.close_all(world.now_ns)
        channel.finished.clear()
        channel.skipped.clear()
        channel.noted.clear()
        channel.floor = topic.real.owed_seq
        channel.placed_ns = world.now_ns
    return f"empty {_name(channel)}{outcome}"


def delete_topic(world: World, step: Step) -> str | None:
    topic = _topic(world, step.a)
    if topic is None:
        return None

    def verb() -> None:
        world.node.broker.delete_topic(topic.name)
        world.node.save_metadata()

    outcome = _operate(world, topic, verb)
    for channel in list(topic.channels.values()):
        world.forget_channel(channel)
    topic.channels = {}
    world.topics.pop(topic.name, None)
    if outcome and not topic.ephemeral:
        topic.is_unsure = True
        world.ghosts[topic.name] = topic
    world.count("topic: deleted")
    return f"delete {topic.name}{outcome}"


def delete_channel(world: World, step: Step) -> str | None:
    channel = _channel(world, step.a)
    if channel is None:
        return None
    topic = channel.topic

    def verb() -> None:
        world.node.broker.delete_channel(topic.real, channel.name)
        world.node.save_metadata()

    outcome = _operate(world, topic, verb)
    if channel.name not in topic.real.channels:
        world.forget_channel(channel)
        if topic.ephemeral and not topic.channels:
            world.topics.pop(topic.name, None)
    return f"delete {_name(channel)}{outcome}"


def create_channel(world: World, step: Step) -> str | None:
    """Create a channel at a position in the log, or at its end."""
    topic, name = _topic(world, step.a), CHANNELS[step.b % len(CHANNELS)]
    if topic is None or name in topic.channels or name.endswith("#ephemeral"):
        return None
    seq = _place(world, topic, step.c) if step.c % 4 and not topic.ephemeral else None
    world.remember_ephemeral(topic)
    world.new_channel_from = seq
    outcome = _operate(world, topic, lambda: topic.real.channel(name, seq))
    world.see_new_channels(topic)
    world.new_channel_from = None
    if seq is not None:
        world.count("channel: created at a position")
    return f"create {topic.name}/{name}{'' if seq is None else ' from the log'}{outcome}"


def seek(world: World, step: Step) -> str | None:
    channel = _channel(world, step.a, lasting=True)
    if channel is None:
        return None
    topic = channel.topic
    seq = _place(world, topic, step.b)
    real = world.real_channel(channel)
    outcome = _operate(world, topic, lambda: real.seek(seq))
    if not outcome:
        messages = world.stored_in(topic, seq)
        was_open = set(channel.open)
        channel.move(seq, messages, world.now_ns)
        channel.placed_ns = world.now_ns
        world.stop_tracking_sampling(
            channel
        )  # A message sampled away in this turn may be queued again.
        is_back = any(message.seq not in was_open for message in messages)
        world.count("channel: rewound" if is_back else "channel: moved forward")
    return f"seek {_name(channel)} to {_position(topic, seq)}{outcome}"


def commit(world: World, step: Step) -> str | None:
    channel = _channel(world, step.a, lasting=True)
    if channel is None or channel.consumers:
        return None
    topic, real = channel.topic, world.real_channel(channel)
    seq = _place(world, topic, step.b)
    floors: list[int] = []
    is_begun = False

    def verb() -> None:
        nonlocal is_begun
        real.set_committing(True)
        world.node.save_metadata()
        is_begun = True
        floors.append(real.commit(seq))

    outcome = _operate(world, topic, verb)
    if real.committing:  # even if it could not be saved
        for entry in list(channel.open.values()):
            if entry.holder is not None:
                channel.remove_from_flight(entry)
                entry.attempts = entry.noted
        channel.departed.clear()
    channel.committing = real.committing
    if is_begun and (not outcome or seq <= real._log_queue().floor):
        channel.close_all(world.now_ns, below=seq)
        if outcome:
            channel.finished |= channel.closed
        channel.floor = max(channel.floor, seq)
        channel.placed_ns = world.now_ns
        world.count("channel: committed")
    if floors and floors[0] < seq:
        raise ViolationError(f"a commit of {seq} left the floor at {floors[0]}")
    return f"commit {_name(channel)} to {_position(topic, seq)}{outcome}"


def consume(world: World, step: Step) -> str | None:
    """Return a committing channel to consumers."""
    committing = [channel for channel in world.channels() if channel.committing]
    if not committing:
        return None
    channel = committing[step.a % len(committing)]

    def verb() -> None:
        world.real_channel(channel).set_committing(False)
        world.node.save_metadata()

    outcome = _operate(world, channel.topic, verb)
    channel.committing = False
    return f"{_name(channel)} has consumers again{outcome}"


def cancel(world: World, step: Step) -> str | None:
    found = _waiting(world, step)
    if found is None:
        return None
    channel, entry, message_id = found
    done: list[bool] = []
    real, wall_ns = world.real_channel(channel), world.clock.wall_ns()
    outcome = _operate(world, channel.topic, lambda: done.append(real.cancel(message_id, wall_ns)))
    if done == [False]:
        raise ViolationError(f"{entry.message.body!r} is deferred, and cannot be cancelled")
    if done or outcome:
        channel.finish(entry, world.now_ns)
        if done:
            channel.finished.pop(entry.message.seq)
        world.count("state: cancelled")
    return f"cancel {entry.message.body.decode()} in {_name(channel)}{outcome}"


def requeue_now(world: World, step: Step) -> str | None:
    found = _waiting(world, step, in_flight=True)
    if found is None:
        return None
    channel, entry, message_id = found
    done: list[bool] = []
    real, wall_ns = world.real_channel(channel), world.clock.wall_ns()
    outcome = _operate(
        world, channel.topic, lambda: done.append(real.requeue_now(message_id, wall_ns))
    )
    if done == [False]:
        raise ViolationError(
            f"{entry.message.body!r} is in flight or deferred, and cannot be requeued"
        )
    if entry.holder is not None:
        channel.requeue_count += 1
        world.requeue_entry(channel, entry)
        world.count("state: requeued from a consumer")
    elif outcome:
        entry.was_due = True  # it may be delivered at any time
    else:
        world.requeue_entry(channel, entry)
        world.count("state: requeued before its due time")
    return f"requeue_now {entry.message.body.decode()} in {_name(channel)}{outcome}"


def retain(world: World, step: Step) -> str | None:
    topic = _topic(world, step.a)
    if topic is None or topic.ephemeral:
        return None
    kept = Retention(time_ns=3600 * 10**9) if step.b % 2 else None
    world.see_trims()  # earlier messages were not retained

    def verb() -> None:
        topic.real.retain(kept)
        world.node.save_metadata()

    outcome = _operate(world, topic, verb)
    topic.keeps_all = kept is not None or world.setup.retention_time_ns is not None
    topic.changed_ns = world.now_ns
    return f"{topic.name} retains {'for an hour' if kept else 'what all do'}{outcome}"


OPERATOR_STEPS = {
    "pause_topic": pause_topic,
    "unpause_topic": unpause_topic,
    "pause_channel": pause_channel,
    "unpause_channel": unpause_channel,
    "empty_topic": empty_topic,
    "empty_channel": empty_channel,
    "delete_topic": delete_topic,
    "delete_channel": delete_channel,
    "create_channel": create_channel,
    "seek": seek,
    "commit": commit,
    "consume": consume,
    "cancel": cancel,
    "requeue_now": requeue_now,
    "retain": retain,
}


def _operate(world: World, topic: ModelTopic, verb: Callable[[], object]) -> str:
    """Run the action. Returns the error message if it failed."""
    world.node.store_publishes()
    try:
        verb()
    except StorageError as failure:
        world.fail(topic)
        return f": {failure}"
    except SimulatedCrash:
        topic.is_unsure = True
        raise
    return ""


def _topic(world: World, number: int) -> ModelTopic | None:
    topics = list(world.topics.values())
    return topics[number % len(topics)] if topics else None


def _channel(world: World, number: int, *, lasting: bool = False) -> ModelChannel | None:
    channels = [each for each in world.channels() if not (lasting and each.ephemeral)]
    return channels[number % len(channels)] if channels else None


def _place(world: World, topic: ModelTopic, number: int) -> int:
    """The sequence number of a stored message, or the next one."""
    log = topic.real.log
    assert isinstance(log, TopicLog)
    world.node.store_publishes()
    world.see_trims()
    seqs = [*topic.messages, log.next_seq]
    return seqs[number // 4 % len(seqs)]


def _waiting(
    world: World, step: Step, *, in_flight: bool = False
) -> tuple[ModelChannel, Entry, bytes] | None:
    """A message that is deferred or in flight."""
    world.node.store_publishes()
    wall_ns = world.clock.wall_ns()
    found = [
        (channel, entry)
        for channel in world.channels()
        for entry in channel.open.values()
        if (_waits(entry, wall_ns) if entry.holder is None else in_flight)
    ]
    if not found:
        return None
    channel, entry = found[step.a % len(found)]
    return channel, entry, b"%016x" % (world.setup.node_id << 54 | entry.message.seq)


def _waits(entry: Entry, wall_ns: int) -> bool:
    return entry.due_ns > wall_ns and not entry.was_due


def _name(channel: ModelChannel) -> str:
    return f"{channel.topic.name}/{channel.name}"


def _position(topic: ModelTopic, seq: int) -> str:
    message = topic.messages.get(seq)
    return "the end" if message is None else message.body.split()[0].decode()
