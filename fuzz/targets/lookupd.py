"""nsqd's commands to nsqlookupd, and their effect on the registry.

All cuts of the bytes give the same events; events that are rendered and parsed again are the same.
In the registry, producers and registrations reference each other, and after all producers have
disconnected none is left.
"""

from typing import Any

from fuzz.cutting import Pieces, cuttings
from penstock.common.clock import SECOND_NS
from penstock.common.errors import LimitReachedError, ProtocolError
from penstock.nsqlookupd.registry import RegisteredProducer, Registry
from penstock.protocol import lookup_v1
from penstock.protocol.lookup_v1 import (
    Event,
    IdentifyPeer,
    LookupServerConnection,
    Ping,
    Register,
    Unregister,
)
from penstock.testing.clock import ManualClock

__all__ = ["SEEDS", "TOKENS", "check"]

INFO = {"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
IDENTIFY = lookup_v1.MAGIC + lookup_v1.identify(INFO)

SEEDS = [
    IDENTIFY + lookup_v1.register("t", "c") + lookup_v1.ping() + lookup_v1.unregister("t", "c"),
    IDENTIFY + lookup_v1.register("t#ephemeral", "c") + lookup_v1.unregister("t#ephemeral"),
    IDENTIFY + lookup_v1.register("t") + lookup_v1.register("u") + lookup_v1.ping(draining=True),
    IDENTIFY + b"REGISTER t c#ephemeral\r\nUNREGISTER t c#ephemeral\nUNREGISTER u\n",
    lookup_v1.MAGIC + b"PING\nREGISTER t\n",
    lookup_v1.MAGIC + b"IDENTIFY\n\0\0\0\2{}",
]
TOKENS = [b"REGISTER ", b"UNREGISTER ", b"PING\n", b"IDENTIFY\n", b"#ephemeral", b" draining"]

TOPICS_MAX = 3
CHANNELS_MAX = 3


def check(data: bytes) -> None:
    whole, *others = (read(pieces) for pieces in cuttings(data))
    for other in others:
        assert other == whole, f"cut otherwise: {other}, whole: {whole}"
    events = whole[0]
    spoken = [event for event in events if not isinstance(event, IdentifyPeer)]
    again, _ = read([IDENTIFY + b"".join(map(render, spoken))])
    assert spoken == again[1:], again
    check_registry(events)
    check_responses(data)


def read(pieces: Pieces) -> tuple[list[Event], str]:
    """The events, and the final error."""
    connection = LookupServerConnection()
    events: list[Event] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) is not None:
                events.append(event)
        connection.receive_eof()
    except ProtocolError as error:
        return events, str(error)
    return events, ""


def render(event: Event) -> bytes:
    match event:
        case Register(topic, channel):
            return lookup_v1.register(topic, channel)
        case Unregister(topic, channel):
            return lookup_v1.unregister(topic, channel)
        case Ping(draining):
            return lookup_v1.ping(draining=draining)
        case IdentifyPeer():
            raise AssertionError("check sends IDENTIFY itself")


class Silence:
    """A driver that does nothing."""

    def changed(self, topic: str) -> None:
        pass

    def advance_at(self, now_ns: int) -> None:
        pass


def check_registry(events: list[Event]) -> None:
    clock = ManualClock()
    lifetimes = {"inactive_producer_timeout_ns": SECOND_NS, "tombstone_lifetime_ns": SECOND_NS}
    registry = Registry(
        clock, Silence(), **lifetimes, max_topics=TOPICS_MAX, max_channels_per_topic=CHANNELS_MAX
    )
    peer = LookupServerConnection()
    peer.receive_data(IDENTIFY)
    first = peer.next_event()
    assert isinstance(first, IdentifyPeer)
    producers = [registry.add_producer(f"{n}:1", first.peer)[0] for n in range(2)]
    # In turn, so that both register and unregister the same keys.
    for at, event in enumerate(events):
        clock.advance(SECOND_NS // 3)
        follow(registry, producers[at % 2], event)
        check_mutual(registry, producers)
    for producer in producers:
        registry.remove_producer(producer)
    assert not any(key.producers for key in registry.registrations())


def follow(registry: Registry, producer: RegisteredProducer, event: Event) -> None:
    try:
        match event:
            case Register(topic, channel):
                registry.register(producer, topic, channel)
                found = registry.lookup(topic)
                assert found is not None
                assert not channel or channel in found.channels
            case Unregister(topic, channel):
                registry.unregister(producer, topic, channel)
                registry.tombstone(topic, producer.node)
            case Ping(draining):
                registry.ping(producer, is_draining=draining)
    except LimitReachedError:
        pass


def check_mutual(registry: Registry, producers: list[RegisteredProducer]) -> None:
    keys: list[Any] = list(registry.registrations())[1:]  # the first is the total
    assert len(registry.topics()) <= TOPICS_MAX
    for producer in producers:
        held = {*producer.topics, *producer.channels}
        assert held == {key for key in keys if producer in key.producers}


def check_responses(data: bytes) -> None:
    """The same bytes, parsed as a response of nsqlookupd."""
    for pieces in cuttings(data):
        reader = lookup_v1.ResponseReader()
        read = b""
        try:
            for piece in pieces:
                reader.receive_data(piece)
                while (response := reader.next_response()) is not None:
                    read += lookup_v1.response(response)
        except ProtocolError:
            pass
        assert data.startswith(read)
