"""Our client side, connected to our server side."""

import json
from dataclasses import dataclass, field

import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.events import (
    Auth,
    Cls,
    Event,
    Fin,
    Identify,
    Limits,
    Nop,
    Publish,
    Rdy,
    Req,
    Sub,
    TopicNamed,
    Touch,
)
from penstock.protocol.frames import ErrorFrame, Frame, FrameReader, MessageFrame, ResponseFrame
from penstock.protocol.identify import ServerOffer, negotiate, parse_identify
from penstock.protocol.server import ServerConnection

TIMESTAMP_NS = 1_700_000_000_000_000_000


@dataclass
class ConnectionPair:
    """A client and a server, connected without sockets, with a minimal broker."""

    chunk_bytes: int
    server: ServerConnection = field(default_factory=lambda: ServerConnection(Limits()))
    client: FrameReader = field(default_factory=FrameReader)
    heard: list[Event] = field(default_factory=list)

    def say(self, data: bytes) -> list[Frame]:
        """The events of the client after it has sent `data`."""
        received: list[Frame] = []
        for start in range(0, len(data), self.chunk_bytes):
            self.server.receive_data(data[start : start + self.chunk_bytes])
            received += self._answers()
        return received

    def _answers(self) -> list[Frame]:
        try:
            while (event := self.server.next_event()) is not None:
                self.heard.append(event)
                self._send(self._reply(event))
        except ProtocolError as error:
            self._send(frames.error(error))
        return list(iter(self.client.next_frame, None))

    def _reply(self, event: Event) -> bytes:
        match event:
            case Identify(body):
                agreed, response = negotiate(parse_identify(body), ServerOffer())
                self.server.heartbeats_enabled = agreed.heartbeat_interval_ms is not None
                return frames.response(response)
            case Publish(oks=oks):
                return frames.OK * oks
            case Sub():
                return frames.OK
            case Rdy(count):
                return b"".join(frames.render_messages([b"body"] * count, 0xABC, TIMESTAMP_NS))
            case Cls():
                return frames.CLOSE_WAIT
            case Req(message_id):
                raise ProtocolError(
                    "E_REQ_FAILED", f"REQ {message_id.decode()} failed", fatal=False
                )
            case Fin() | Touch() | Nop() | Auth() | TopicNamed():
                return b""

    def _send(self, data: bytes) -> None:
        for start in range(0, len(data), self.chunk_bytes):
            self.client.receive_data(data[start : start + self.chunk_bytes])


@pytest.fixture(params=[1, 7, 1000], ids="{} bytes at a time".format)
def pair(request: pytest.FixtureRequest) -> ConnectionPair:
    made = ConnectionPair(request.param)

    assert [] == made.say(commands.MAGIC)
    return made


def test_a_producers_connection(pair: ConnectionPair) -> None:
    (identified,) = pair.say(commands.identify({"feature_negotiation": True, "client_id": "me"}))

    assert isinstance(identified, ResponseFrame)
    assert "1.3.0" == json.loads(identified.data)["version"]
    assert [ResponseFrame(b"OK")] == pair.say(commands.pub("t", b"one"))
    assert [ResponseFrame(b"OK")] * 3 == pair.say(commands.pub("t", b"two") * 3)
    assert [ResponseFrame(b"OK")] == pair.say(commands.mpub("t", [b"three", b"four"]))
    assert [ResponseFrame(b"OK")] == pair.say(commands.dpub("t", 100, b"five"))
    assert [ResponseFrame(b"OK")] == pair.say(commands.dmpub("t", 100, [b"six"]))
    published = [event for event in pair.heard if isinstance(event, Publish)]
    bodies = [body for event in published for body in event.bodies]
    assert [b"one", *[b"two"] * 3, b"three", b"four", b"five", b"six"] == bodies


def test_a_consumers_connection(pair: ConnectionPair) -> None:
    assert [ResponseFrame(b"OK")] == pair.say(commands.sub("t", "c"))
    first, second = pair.say(commands.rdy(2))
    assert MessageFrame(TIMESTAMP_NS, 1, b"0000000000000abc", b"body") == first
    assert MessageFrame(TIMESTAMP_NS, 1, b"0000000000000abd", b"body") == second

    pair.heard.clear()
    assert [] == pair.say(commands.touch(first.id) + commands.fin(first.id))
    assert [Touch(first.id), Fin([first.id])] == pair.heard
    assert [ResponseFrame(b"CLOSE_WAIT")] == pair.say(commands.cls())
    assert [] == pair.say(commands.rdy(5) + commands.nop())


def test_after_a_nonfatal_error_the_connection_stays_open(pair: ConnectionPair) -> None:
    pair.say(commands.sub("t", "c"))

    text = "REQ 0123456789abcdef failed"
    refusal = ErrorFrame("E_REQ_FAILED", text)
    assert [refusal] == pair.say(commands.req(b"0123456789abcdef", 5))
    assert [ResponseFrame(b"CLOSE_WAIT")] == pair.say(commands.cls())


def test_a_fatal_error_is_the_last_frame(pair: ConnectionPair) -> None:
    refusal = ErrorFrame("E_BAD_TOPIC", r'PUB topic name "\xff" is not valid')

    assert [refusal] == pair.say(b"PUB \xff\n" + commands.nop())
    assert [] == pair.say(commands.pub("t", b"more"))
    assert [] == pair.heard


def test_sub_fails_without_heartbeats(pair: ConnectionPair) -> None:
    assert [ResponseFrame(b"OK")] == pair.say(commands.identify({"heartbeat_interval": -1}))

    refusal = ErrorFrame("E_INVALID", "cannot SUB with heartbeats disabled")
    assert [refusal] == pair.say(commands.sub("t", "c"))
