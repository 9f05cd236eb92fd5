"""Scenarios that measure throughput."""

from collections.abc import Mapping
from dataclasses import replace

from bench.driving import BATCH, CHANNEL, TOPIC, drain, drive, publish
from bench.figures import Figures
from bench.layered import dial_snappy, dial_tls
from bench.load import Consumer, allow_sockets
from bench.nsq import Dial, Nsq, http_batch_publisher, http_publisher
from bench.targets import Server

__all__ = [
    "backlog",
    "consume",
    "consume_by_many",
    "fan_out",
    "huge_backlog",
    "publish_batches",
    "publish_http",
    "publish_http_batches",
    "publish_singles",
    "publish_singles_by_many",
    "publish_to_many_topics",
    "under_snappy",
    "under_tls",
]

FANOUT = tuple(f"channel{n}" for n in range(10))

MANY = 1_000
"""Number of topics or consumers; a tenth of the messages if that is less."""

AHEAD_OF_MANY = 25
"""Messages in flight to each of many consumers: in total five times those of two."""


def publish_batches(server: Server, count: int) -> Mapping[str, Figures]:
    return {"mpub": publish(server, count).figures()}


def consume(server: Server, count: int) -> Mapping[str, Figures]:
    server.wire.create(server.at, TOPIC, [CHANNEL])
    publish(server, count)
    return {"consume": drain(server, count).figures()}


def consume_by_many(server: Server, count: int) -> Mapping[str, Figures]:
    readers = min(MANY, count // 10)
    allow_sockets(readers)
    server.wire.create(server.at, TOPIC, [CHANNEL])
    publish(server, count)
    return {"consumers": drain(server, count, readers=readers, ahead=AHEAD_OF_MANY).figures()}


def publish_singles(server: Server, count: int) -> Mapping[str, Figures]:
    return {"pub": _publish_one_by_one(server, count, connections=4)}


def publish_singles_by_many(server: Server, count: int) -> Mapping[str, Figures]:
    return {"pub64": _publish_one_by_one(server, count, connections=64)}


def publish_to_many_topics(server: Server, count: int) -> Mapping[str, Figures]:
    """Each topic has a channel without consumers."""
    topics = [f"topic{n}" for n in range(min(MANY, count // 10))]
    for topic in topics:
        server.wire.create(server.at, topic, [CHANNEL])
    return {"topics": _publish_one_by_one(server, count, *topics, connections=4)}


def publish_http(server: Server, count: int) -> Mapping[str, Figures]:
    publisher = http_publisher(server.at, TOPIC, connections=32, requests=count // 32)
    return {"http": drive(server, [publisher]).figures()}


def publish_http_batches(server: Server, count: int) -> Mapping[str, Figures]:
    publisher = http_batch_publisher(
        server.at, TOPIC, connections=4, requests=count // (4 * BATCH), batch=BATCH
    )
    return {"http-mpub": drive(server, [publisher]).figures()}


def fan_out(server: Server, count: int) -> Mapping[str, Figures]:
    """Publish and deliver at the same time. Each delivery counts as a message."""
    server.wire.create(server.at, TOPIC, FANOUT)
    published = count // len(FANOUT)
    publisher = server.wire.publisher(
        server.at, TOPIC, connections=1, requests=published // BATCH, batch=BATCH
    )
    readers = [server.wire.reader(server.at, TOPIC, channel) for channel in FANOUT]
    consumer = Consumer(readers, published * len(FANOUT))
    return {"fanout": drive(server, [consumer, publisher]).figures(consumer.messages)}


def under_tls(server: Server, count: int) -> Mapping[str, Figures]:
    return _through(dial_tls, "tls", server, count)


def under_snappy(server: Server, count: int) -> Mapping[str, Figures]:
    return _through(dial_snappy, "snappy", server, count)


def backlog(server: Server, count: int) -> Mapping[str, Figures]:
    return _publish_then_drain(server, count, "backlog")


def huge_backlog(server: Server, count: int) -> Mapping[str, Figures]:
    return _publish_then_drain(server, count, "huge-backlog")


def _through(dial: Dial, row: str, server: Server, count: int) -> Mapping[str, Figures]:
    return _publish_then_drain(replace(server, wire=Nsq(dial)), count, row, drained="consume")


def _publish_then_drain(
    server: Server, count: int, row: str, drained: str = "drain"
) -> Mapping[str, Figures]:
    """Memory is the peak of the server, so the drain's includes the publish's."""
    server.wire.create(server.at, TOPIC, [CHANNEL])
    published = publish(server, count).figures()
    return {f"{row}-publish": published, f"{row}-{drained}": drain(server, count).figures()}


def _publish_one_by_one(server: Server, count: int, *topics: str, connections: int) -> Figures:
    publisher = server.wire.publisher(
        server.at,
        *(topics or (TOPIC,)),
        connections=connections,
        requests=count // connections,
        batch=1,
    )
    return drive(server, [publisher]).figures()
