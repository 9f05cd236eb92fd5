"""A client's commands, as nsqd parses them.

All cuts of the bytes give the same commands; commands that are rendered and parsed again are the
same.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from fuzz.cutting import Pieces, cuttings
from penstock.common.errors import LineTooLongError, ProtocolError
from penstock.protocol import commands
from penstock.protocol.command_table import COMMANDS
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
from penstock.protocol.identify import ServerOffer, negotiate, parse_identify
from penstock.protocol.server import ServerConnection

__all__ = ["SEEDS", "TOKENS", "check"]

ID = b"0123456789abcdef"

# Small, so that inputs of a few bytes reach them.
LIMITS = Limits(
    max_msg_size=40,
    max_body_size=100,
    max_rdy_count=9,
    max_req_timeout_ms=900,
    max_defer_timeout_ms=900,
)
OFFER = ServerOffer(tls=True, snappy=True, deflate=True)

SEEDS = [
    commands.MAGIC + b"".join(seed)
    for seed in (
        [commands.pub("t", b"x"), commands.pub("t", b"yz"), commands.dpub("t", 5, b"x")],
        [commands.mpub("t", [b"one", b"two"]), commands.dmpub("t", 900, [b"x"])],
        [commands.sub("t", "c#ephemeral"), commands.rdy(2), commands.fins([ID, ID])],
        [commands.sub("t", "c"), commands.req(ID, 901), commands.touch(ID), commands.cls()],
        [commands.sub("t", "c"), commands.cls(), commands.rdy(1), commands.nop()],
        [commands.identify({"client_id": "a", "heartbeat_interval": -1}), commands.sub("t", "c")],
        [commands.identify({"feature_negotiation": True, "sample_rate": 50}), b"NOP\r\n"],
        [commands.identify({"feature_negotiation": True, "snappy": True}), b"\xff\x06\0\0sNaPpY"],
        [commands.auth(b"secret"), b"PUB . \n\0\0\0\1x"],
    )
]
TOKENS = [*(word + b" " for word in COMMANDS), b"\r\n", b"\0\0\0\1", b'{"deflate":true}', ID]

Said = tuple[Any, ...]
"""One command, separated from its group."""


def check(data: bytes) -> None:
    whole, *others = (read(pieces) for pieces in cuttings(data))
    for other in others:
        assert other == whole, f"cut otherwise: {other}, whole: {whole}"
    spoken = [said for said in whole if said[0] in RENDERERS]
    if not any(said[0] in ("FIN", "REQ", "TOUCH") and said[1].endswith(b"\r") for said in spoken):
        again = read([commands.MAGIC + b"".join(map(render, spoken))])
        assert spoken == [said for said in again if said[0] in RENDERERS], again


def read(pieces: Pieces) -> list[Said]:
    """The commands, and the final state of the connection."""
    connection = ServerConnection(LIMITS)
    said: list[Said] = []
    remaining = list(pieces)
    try:
        while remaining:
            piece = remaining.pop(0)
            if (only := connection.parse_single(piece)) is not None:
                said += commands_of(only)
                continue
            connection.receive_data(piece)
            while (event := connection.next_event()) is not None:
                said += commands_of(event)
                if isinstance(event, Identify) and (end := identified(connection, event)):
                    return [*said, (end, connection.take_unread() + b"".join(remaining))]
        connection.receive_eof()
    except ProtocolError as error:
        assert error.fatal, error
        said.append(("error", str(error)))
    except LineTooLongError:
        said.append(("too long",))
    connection.receive_data(b"NOP\n")
    assert connection.next_event() is None, "it is dead"
    assert connection.parse_single(commands.fin(ID)) is None, "it is dead"
    return said


def identified(connection: ServerConnection, event: Identify) -> str:
    """Handle IDENTIFY as nsqd does; returns the reason if no further command can be parsed."""
    try:
        agreed, answer = negotiate(parse_identify(event.body), OFFER)
    except ProtocolError as error:
        return str(error)
    assert answer == b"OK" or isinstance(json.loads(answer), dict)
    connection.heartbeats_enabled = agreed.heartbeat_interval_ms is not None
    return "upgraded" if agreed.tls or agreed.snappy or agreed.deflate else ""


def commands_of(event: Event) -> Iterable[Said]:
    """The commands of an event; TopicNamed and ignored ones are skipped."""
    match event:
        case Publish(topic, bodies, oks, ("PUB" | "DPUB") as word, defer_ms):
            assert len(bodies) == oks
            return [(word, topic, body, defer_ms) for body in bodies]
        case Publish(topic, bodies, oks, word, defer_ms):
            assert oks == 1
            return [(word, topic, tuple(bodies), defer_ms)]
        case Fin(ids):
            return [("FIN", id) for id in ids]
        case Req(id, delay_ms):
            return [("REQ", id, delay_ms)]
        case Touch(id):
            return [("TOUCH", id)]
        case Sub(topic, channel):
            return [("SUB", topic, channel)]
        case Rdy(count):
            return [("RDY", count)]
        case Cls():
            return [("CLS",)]
        case Nop():
            return [("NOP",)]
        case Identify(body):
            return [("IDENTIFY", body)]
        case Auth(secret):
            return [("AUTH", secret)]
        case TopicNamed():
            return []


def sized(word: bytes, body: bytes) -> bytes:
    return word + b"\n" + len(body).to_bytes(4) + body


RENDERERS: dict[str, Callable[..., bytes]] = {
    "PUB": lambda topic, body, _defer_ms: commands.pub(topic, body),
    "DPUB": lambda topic, body, defer_ms: commands.dpub(topic, defer_ms, body),
    "MPUB": lambda topic, bodies, _defer_ms: commands.mpub(topic, bodies),
    "DMPUB": lambda topic, bodies, defer_ms: commands.dmpub(topic, defer_ms, bodies),
    "FIN": commands.fin,
    "REQ": commands.req,
    "TOUCH": commands.touch,
    "SUB": commands.sub,
    "RDY": commands.rdy,
    "CLS": commands.cls,
    "NOP": commands.nop,
    "IDENTIFY": lambda body: sized(b"IDENTIFY", body),
    "AUTH": lambda secret: sized(b"AUTH", secret),
}


def render(said: Said) -> bytes:
    word, *arguments = said
    return RENDERERS[word](*arguments)
