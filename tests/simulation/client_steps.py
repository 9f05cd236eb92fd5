"""Steps of clients. Each picks a connection and messages, sends commands, and logs them."""

from tests.simulation.connection import Connection, ExpectedReply
from tests.simulation.model import Consumer, Entry
from tests.simulation.node import MSG_TIMEOUT_NS, TIMEOUT_MAX_NS
from tests.simulation.schedule import Step
from tests.simulation.world import SAMPLE_PERCENT, World

from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.protocol import commands
from penstock.testing import SimulatedCrash

__all__ = ["CHANNELS", "CLIENT_STEPS", "finish_all", "set_rdy", "subscribe_to"]

TOPICS = ("t", "t", "t", "t", "t", "t", "u", "u", "e#ephemeral", "t")
CHANNELS = ("c", "c", "c", "c", "d", "d", "x#ephemeral")
_DEFERRALS_MS = (1, 40, 1_000, 3_000, 7_000)
_DELAYS_MS = (0, 0, 0, 30, 2_000, 7_000)
_NO_SUCH_ID = b"0123456789abcdef"
_PRODUCERS = 2


def publish(world: World, step: Step) -> str | None:
    producer = _producer(world, step.a)
    if not producer.can_send:
        return None
    topic = TOPICS[step.a // 7 % len(TOPICS)]
    kind, count = step.b % 8, 1 + step.b // 8 % 5
    defer_ms = _DEFERRALS_MS[step.c % len(_DEFERRALS_MS)]
    bodies = world.new_bodies(1 if kind == 6 else count)
    if kind < 4:
        word, data = "PUB", b"".join(commands.pub(topic, body) for body in bodies)
        expected_replies = [ExpectedReply("OK", (body,)) for body in bodies]
    elif kind < 6:
        word, data, expected_replies = (
            "MPUB",
            commands.mpub(topic, bodies),
            [ExpectedReply("OK", bodies)],
        )
    elif kind == 6:
        word, data = "DPUB", commands.dpub(topic, defer_ms, bodies[0])
        expected_replies = [ExpectedReply("OK", bodies)]
    else:
        word, data = "DMPUB", commands.dmpub(topic, defer_ms, bodies)
        expected_replies = [ExpectedReply("OK", bodies)]
    world.count(f"publish: {word}")
    later = f" in {defer_ms} ms" if kind >= 6 else ""
    world.say(f"{word} {topic}{later}: {_names(bodies)}")
    cut = step.c // 8 if step.c % 8 == 0 else 0
    producer.send(data, *expected_replies, cut=cut, in_one_turn=step.c % 16 == 0)
    return ""


def publish_bad(world: World, step: Step) -> str:
    """Publish an invalid command. No part of it may be stored, not even half of an MPUB."""
    producer = _producer(world, step.a)
    if not producer.can_send:
        return "nothing"
    body = world.new_bodies(1)[0]
    cases = (
        (commands.mpub("t", [body, b""]), "E_BAD_MESSAGE"),
        (commands.pub("t", b"x" * 201), "E_BAD_MESSAGE"),
        (b"PUBLISH t\n", "E_INVALID"),
        (commands.pub("t!", body), "E_BAD_TOPIC"),
        (commands.dpub("t", 100_000_000, body), "E_INVALID"),
    )
    data, code = cases[step.b % len(cases)]
    producer.send(data, ExpectedReply(code))
    world.count(f"publish: {code}")
    return f"a publish that must be refused: {code}"


def subscribe(world: World, step: Step) -> str:
    topic, name = TOPICS[step.a % len(TOPICS)], CHANNELS[step.b % len(CHANNELS)]
    return subscribe_to(world, topic, name, step)


def _another_is_sampled(world: World, topic: str, name: str) -> bool:
    """Whether another channel is sampled: then the model could not tell which channel skipped a
    message.
    """
    sampled = [channel for channel in world.channels() if channel.is_sampled]
    return any((each.topic.name, each.name) != (topic, name) for each in sampled)


def subscribe_to(world: World, topic: str, name: str, step: Step) -> str:
    connection = world.connect("consumer")
    is_sampling = step.c % 24 == 0 and not _another_is_sampled(world, topic, name)
    timeout_ns = SECOND_NS if step.c % 5 == 0 else MSG_TIMEOUT_NS
    if is_sampling or timeout_ns != MSG_TIMEOUT_NS:
        wishes = {"msg_timeout": timeout_ns // MILLISECOND_NS, "sample_rate": 0}
        wishes["sample_rate"] = SAMPLE_PERCENT if is_sampling else 0
        connection.send(
            commands.identify({"feature_negotiation": True, **wishes}), ExpectedReply("JSON")
        )
        world.count("consumer: negotiated")
    try:
        connection.send(commands.sub(topic, name), ExpectedReply("OK"))
    except SimulatedCrash:
        if (model := world.topics.get(topic)) is not None:
            model.is_unsure = True
        raise
    model = world.topics.get(topic)
    if model is not None:
        world.see_new_channels(model)
    if connection.gone or connection.server.subscriber is None:
        if model is None or name not in model.channels or not model.channels[name].committing:
            world.fail(model)
        return f"{connection.name} SUB {topic} {name}: refused"
    assert model is not None
    consumer = Consumer(connection, model.channels[name], timeout_ns, sampling=is_sampling)
    world.consumers[connection] = consumer
    consumer.channel.consumers.append(consumer)
    consumer.channel.is_sampled |= is_sampling
    rdy = (0, 1, 2, 5, 300)[step.c // 5 % 5]
    set_rdy(consumer, rdy)
    return f"{connection.name} SUB {topic} {name}, RDY {rdy}" + (", samples" if is_sampling else "")


def ready(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a)
    if consumer is None:
        return None
    rdy = (0, 1, 2, 3, 7, 300)[step.b % 6]
    set_rdy(consumer, rdy)
    return f"{consumer.connection.name} RDY {rdy}"


def fin(world: World, step: Step) -> str | None:
    """FIN messages in flight, sometimes one twice, or one that is not in flight, which fails."""
    consumer = _consumer(world, step.a, has_messages=step.b % 16 != 0)
    if consumer is None:
        return None
    ids = _picked(consumer, step.b, 1 + step.c % 4)
    if step.c % 11 == 0:
        ids.append(ids[0] if ids else _NO_SUCH_ID)
    if not ids:
        return None
    bodies = _names(
        consumer.in_flight[each].message.body for each in ids if each in consumer.in_flight
    )
    channel, known = consumer.channel, dict(consumer.in_flight)
    refused = [each for at, each in enumerate(ids) if each not in known or each in ids[:at]]
    cut = step.c if step.c % 9 == 0 else 0
    expected_replies = [ExpectedReply("E_FIN_FAILED")] * len(refused)
    consumer.connection.send(commands.fins(ids), *expected_replies, cut=cut)
    for message_id in dict.fromkeys(ids):
        if message_id in known:
            channel.finish(known[message_id], world.now_ns)
            world.count("state: finished")
    if refused:
        world.count("refused: E_FIN_FAILED")
    return f"{consumer.connection.name} FIN {bodies}" + (
        ", and one that is not in flight" if refused else ""
    )


def finish_all(world: World, consumer: Consumer) -> None:
    """A consumer finishes all its messages."""
    ids, channel = list(consumer.in_flight), consumer.channel
    consumer.connection.send(commands.fins(ids))
    for entry in list(consumer.in_flight.values()):
        channel.finish(entry, world.now_ns)


def req(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a, has_messages=step.b % 16 != 0)
    if consumer is None:
        return None
    delay_ms = _DELAYS_MS[step.c % len(_DELAYS_MS)]
    ids = _picked(consumer, step.b, 1)
    if not ids:
        consumer.connection.send(commands.req(_NO_SUCH_ID, delay_ms), ExpectedReply("E_REQ_FAILED"))
        world.count("refused: E_REQ_FAILED")
        return f"{consumer.connection.name} REQ of a message that is not in flight"
    entry = consumer.in_flight[ids[0]]
    consumer.connection.send(commands.req(ids[0], delay_ms))
    due_ns = world.clock.wall_ns() + delay_ms * MILLISECOND_NS if delay_ms else 0
    consumer.channel.requeue_count += 1
    world.requeue_entry(consumer.channel, entry, due_ns)
    world.count("state: requeued with delay" if delay_ms else "state: requeued")
    return f"{consumer.connection.name} REQ {_names([entry.message.body])} {delay_ms} ms"


def touch(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a, has_messages=step.b % 16 != 0)
    if consumer is None:
        return None
    ids = _picked(consumer, step.b, 1)
    if not ids:
        consumer.connection.send(commands.touch(_NO_SUCH_ID), ExpectedReply("E_TOUCH_FAILED"))
        world.count("refused: E_TOUCH_FAILED")
        return f"{consumer.connection.name} TOUCH of a message that is not in flight"
    entry = consumer.in_flight[ids[0]]
    consumer.connection.send(commands.touch(ids[0]))
    _extend(entry, consumer, world.now_ns)
    world.count("state: touched")
    return f"{consumer.connection.name} TOUCH {_names([entry.message.body])}"


def close(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a)
    if consumer is None or consumer.connection.closing:
        return None
    consumer.connection.send(commands.cls(), ExpectedReply("CLOSE_WAIT"))
    consumer.connection.closing = True
    consumer.rdy = 0
    return f"{consumer.connection.name} CLS"


def leave(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a, can_send=False)
    if step.a % 8 == 0:
        connection = _producer(world, step.b)
    elif consumer is not None:
        connection = consumer.connection
    else:
        return None
    if step.c % 2:
        connection.end()
    else:
        connection.reset()
    return f"{connection.name} {'ends' if step.c % 2 else 'is cut off'}"


def stop_reading(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a)
    if consumer is None:
        return None
    consumer.connection.stop_reading()
    return f"{consumer.connection.name} stops reading"


def resume_reading(world: World, step: Step) -> str | None:
    blocked = [each for each in world.consumers if each.blocked]
    if not blocked:
        return None
    blocked[step.a % len(blocked)].resume_reading()
    return f"{blocked[step.a % len(blocked)].name} resumes reading"


def ignore_heartbeats(world: World, step: Step) -> str | None:
    consumer = _consumer(world, step.a)
    if consumer is None:
        return None
    connection = consumer.connection
    connection.ignores_heartbeats = not connection.ignores_heartbeats
    return (
        f"{connection.name} {'ignores' if connection.ignores_heartbeats else 'answers'} heartbeats"
    )


CLIENT_STEPS = {
    "publish": publish,
    "publish_bad": publish_bad,
    "subscribe": subscribe,
    "ready": ready,
    "fin": fin,
    "req": req,
    "touch": touch,
    "close": close,
    "leave": leave,
    "stop_reading": stop_reading,
    "resume_reading": resume_reading,
    "ignore_heartbeats": ignore_heartbeats,
}


def _producer(world: World, number: int) -> Connection:
    key = number % _PRODUCERS
    producer = world.producers.get(key)
    if producer is None or producer.gone:
        producer = world.producers[key] = world.connect("producer")
    return producer


def _consumer(
    world: World, number: int, *, has_messages: bool = False, can_send: bool = True
) -> Consumer | None:
    suitable = [
        each
        for each in world.consumers.values()
        if (each.in_flight or not has_messages) and (each.connection.can_send or not can_send)
    ]
    return suitable[number % len(suitable)] if suitable else None


def _picked(consumer: Consumer, number: int, count: int) -> list[bytes]:
    """Ids of messages in flight; sometimes none."""
    ids = list(consumer.in_flight)
    if not ids or number % 16 == 0:
        return []
    at = number // 16 % len(ids)
    return ids[at : at + count]


def set_rdy(consumer: Consumer, rdy: int) -> None:
    """Has no effect after CLS."""
    consumer.connection.send(commands.rdy(rdy))
    if not consumer.connection.closing:
        consumer.rdy = rdy


def _extend(entry: Entry, consumer: Consumer, now_ns: int) -> None:
    """Messages delivered together share a time, so the limit is known only to within a grain."""
    entry.deadline_ns = min(now_ns + consumer.timeout_ns, entry.delivered_ns + TIMEOUT_MAX_NS)


def _names(bodies: object) -> str:
    return " ".join(body.split()[0].decode() for body in bodies)  # type: ignore[attr-defined]
