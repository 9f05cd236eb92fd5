"""Every command that a client may send: in which states, which state follows, and its decoder.

`COMMANDS` is the only list of the commands. `ServerConnection` uses it for dispatch and for the
checks that all commands share; tests compare the documentation with it.

A decoder is called with the buffer positioned after the command's line. It either moves the buffer
past the body and returns the event; or returns `NeedMore`, and is called again from the start of
the line once enough bytes have arrived; or raises ProtocolError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeAlias

from penstock.common.errors import ProtocolError
from penstock.common.go_text import quoted, verbatim
from penstock.common.names import maybe_name
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.command_cache import PublishParser
from penstock.protocol.events import (
    Auth,
    Cls,
    Event,
    Fin,
    Identify,
    Limits,
    Nop,
    Rdy,
    Req,
    State,
    Sub,
    Touch,
)
from penstock.protocol.mpub import MultiBody

__all__ = ["COMMANDS", "Command", "MultiPublish", "NeedMore", "RawCommand"]

_INT32 = Struct(">i")
_INT32_BYTES = 4
_UINT64_MAX = 2**64 - 1
_UINT64_DIGITS_MAX = 20
_MESSAGE_ID_BYTES = 16


class RawCommand(NamedTuple):
    """A command's line, split at spaces, and what a decoder needs beside it."""

    name: str
    params: list[bytes]
    line_start: int
    """Position of the line in the buffer. The buffer itself is positioned after the line."""
    buffer: ReceiveBuffer
    limits: Limits


class NeedMore(NamedTuple):
    """The body is incomplete."""

    size: int
    """Number of bytes needed, from the start of the line."""
    shortfall: ProtocolError
    """The error to send if the stream ends here."""


@dataclass(slots=True)
class MultiPublish:
    """A multi-publish whose line has been read; its body follows."""

    topic: str
    command: str
    defer_ms: int
    body: MultiBody


# Publishing ---------------------------------------------------------------------------------------


def _decode_pub(command: RawCommand) -> PublishParser | NeedMore:
    return _publish_parser(command, _topic(command), defer_ms=0)


def _decode_dpub(command: RawCommand) -> PublishParser | NeedMore:
    topic = _topic(command)
    return _publish_parser(command, topic, _defer_ms(command))


def _decode_mpub(command: RawCommand) -> MultiPublish:
    # nsq compat: only this error repeats its code in the text.
    topic = _topic(command, prefix="E_BAD_TOPIC ")
    return MultiPublish(topic, command.name, 0, MultiBody(command.name, command.limits))


def _decode_dmpub(command: RawCommand) -> MultiPublish:
    topic = _topic(command)
    defer_ms = _defer_ms(command)
    return MultiPublish(topic, command.name, defer_ms, MultiBody(command.name, command.limits))


def _publish_parser(command: RawCommand, topic: str, defer_ms: int) -> PublishParser | NeedMore:
    """The parser of this line, if a complete message follows. Moves the buffer back to the line."""
    buffer = command.buffer
    line = buffer.data[command.line_start : buffer.start]
    size_max = command.limits.max_msg_size
    body = _maybe_body(command, _MESSAGE_BODY, size_max)
    if isinstance(body, NeedMore):
        return body
    buffer.start = command.line_start
    return PublishParser(line, topic, command.name, defer_ms, size_max)


# Consuming ----------------------------------------------------------------------------------------


def _decode_fin(command: RawCommand) -> Fin:
    return Fin([_message_id(command)])


def _decode_req(command: RawCommand) -> Req:
    message_id = _message_id(command)
    requested_ms = _number(command, 1, "timeout")
    delay_ms = min(requested_ms, command.limits.max_req_timeout_ms)
    return Req(message_id, delay_ms, clamped=delay_ms < requested_ms)


def _decode_touch(command: RawCommand) -> Touch:
    return Touch(_message_id(command))


def _decode_rdy(command: RawCommand) -> Rdy:
    count = _number(command, 0, "count") if command.params else 1
    count_max = command.limits.max_rdy_count
    if count > count_max:
        # nsq compat: the text shows the count as a signed number.
        shown = count if count < 2**63 else count - 2**64
        raise _invalid(f"RDY count {shown} out of range 0-{count_max}")
    return Rdy(count)


def _decode_sub(command: RawCommand) -> Sub:
    topic = _topic(command)
    channel = maybe_name(command.params[1])
    if channel is None:
        name = quoted(command.params[1])
        raise ProtocolError("E_BAD_CHANNEL", f"SUB channel name {name} is not valid")
    return Sub(topic, channel)


def _decode_cls(_command: RawCommand) -> Cls:
    return Cls()


# Connection ---------------------------------------------------------------------------------------


def _decode_nop(_command: RawCommand) -> Nop:
    return Nop()


def _decode_identify(command: RawCommand) -> Identify | NeedMore:
    body = _maybe_body(command, _PLAIN_BODY, command.limits.max_body_size)
    return body if isinstance(body, NeedMore) else Identify(body)


def _decode_auth(command: RawCommand) -> Auth | NeedMore:
    if command.params:
        raise _invalid("AUTH invalid number of parameters")
    body = _maybe_body(command, _PLAIN_BODY, command.limits.max_body_size)
    return body if isinstance(body, NeedMore) else Auth(body)


# Parts of commands --------------------------------------------------------------------------------


class _BodyKind(NamedTuple):
    """Words for a body in error texts."""

    code: str
    noun: str
    noun_when_too_big: str


_MESSAGE_BODY = _BodyKind("E_BAD_MESSAGE", "message body", "message")
_PLAIN_BODY = _BodyKind("E_BAD_BODY", "body", "body")


def _maybe_body(command: RawCommand, kind: _BodyKind, size_max: int) -> bytes | NeedMore:
    """The sized body after the line; moves the buffer past it."""
    buffer, name = command.buffer, command.name
    data, start = buffer.data, buffer.start + _INT32_BYTES
    if start > len(data):
        shortfall = ProtocolError(kind.code, f"{name} failed to read {kind.noun} size")
        return NeedMore(start - command.line_start, shortfall)
    size = _INT32.unpack_from(data, buffer.start)[0]
    if size <= 0:
        raise ProtocolError(kind.code, f"{name} invalid {kind.noun} size {size}")
    if size > size_max:
        text = f"{name} {kind.noun_when_too_big} too big {size} > {size_max}"
        raise ProtocolError(kind.code, text)
    stop = start + size
    if stop > len(data):
        shortfall = ProtocolError(kind.code, f"{name} failed to read {kind.noun}")
        return NeedMore(stop - command.line_start, shortfall)
    buffer.start = stop
    return data[start:stop]


def _topic(command: RawCommand, *, prefix: str = "") -> str:
    topic = maybe_name(command.params[0])
    if topic is None:
        text = f"{prefix}{command.name} topic name {quoted(command.params[0])} is not valid"
        raise ProtocolError("E_BAD_TOPIC", text)
    return topic


def _defer_ms(command: RawCommand) -> int:
    defer_ms = _number(command, 1, "timeout")
    defer_ms_max = command.limits.max_defer_timeout_ms
    if defer_ms > defer_ms_max:
        raise _invalid(f"{command.name} timeout {defer_ms} out of range 0-{defer_ms_max}")
    return defer_ms


def _message_id(command: RawCommand) -> bytes:
    message_id = command.params[0]
    if len(message_id) != _MESSAGE_ID_BYTES:
        raise _invalid("invalid message ID")
    return message_id


def _number(command: RawCommand, index: int, noun: str) -> int:
    """Parse a parameter of ASCII digits. Empty means 0; a number above 64 bits becomes the maximum.

    NSQ's 64-bit integer overflows there, which can make a huge number a small one.
    """
    digits = command.params[index]
    if digits and not digits.isdigit():
        raise _invalid(f"{command.name} could not parse {noun} {verbatim(digits)}")
    significant = digits.lstrip(b"0")
    if len(significant) > _UINT64_DIGITS_MAX:
        return _UINT64_MAX
    return min(int(significant or b"0"), _UINT64_MAX)


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)


# The table ----------------------------------------------------------------------------------------

Decoder: TypeAlias = Callable[[RawCommand], Event | PublishParser | MultiPublish | NeedMore]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name, states and parameter count, and the function that decodes it."""

    name: str
    syntax: str
    response: str
    decode: Decoder
    states: tuple[State, ...]
    next_state: State | None = None
    ignored_in: tuple[State, ...] = ()
    params_min: int = 0
    params_noun: str = "parameters"
    allowed_before_tls: bool = False
    needs_heartbeats: bool = False


# Tuples: `in` compares by identity, which is faster than hashing an enum member.
_ANY = tuple(State)
_INIT = (State.INIT,)
_SUBSCRIBED = (State.SUBSCRIBED,)
_CLOSING = (State.CLOSING,)

COMMANDS = {
    command.name.encode(): command
    for command in (
        Command(
            "IDENTIFY",
            r"IDENTIFY\n[size][JSON]",
            response="JSON, or OK",
            decode=_decode_identify,
            states=_INIT,
            allowed_before_tls=True,
        ),
        Command(
            "AUTH",
            r"AUTH\n[size][secret]",
            response="JSON",
            decode=_decode_auth,
            states=_INIT,
        ),
        Command(
            "SUB",
            r"SUB <topic> <channel>\n",
            response="OK",
            decode=_decode_sub,
            states=_INIT,
            next_state=State.SUBSCRIBED,
            params_min=2,
            needs_heartbeats=True,
        ),
        Command(
            "PUB",
            r"PUB <topic>\n[size][message]",
            response="OK",
            decode=_decode_pub,
            states=_ANY,
            params_min=1,
        ),
        Command(
            "MPUB",
            r"MPUB <topic>\n[body size][count]([size][message])*",
            response="OK",
            decode=_decode_mpub,
            states=_ANY,
            params_min=1,
        ),
        Command(
            "DPUB",
            r"DPUB <topic> <defer ms>\n[size][message]",
            response="OK",
            decode=_decode_dpub,
            states=_ANY,
            params_min=2,
        ),
        Command(
            "DMPUB",
            r"DMPUB <topic> <defer ms>\n[body size][count]([size][message])*",
            response="OK",
            decode=_decode_dmpub,
            states=_ANY,
            params_min=2,
        ),
        Command(
            "RDY",
            r"RDY [count]\n",
            response="",
            decode=_decode_rdy,
            states=_SUBSCRIBED,
            ignored_in=_CLOSING,
        ),
        Command(
            "FIN",
            r"FIN <message id>\n",
            response="",
            decode=_decode_fin,
            states=_SUBSCRIBED + _CLOSING,
            params_min=1,
            params_noun="params",
        ),
        Command(
            "REQ",
            r"REQ <message id> <delay ms>\n",
            response="",
            decode=_decode_req,
            states=_SUBSCRIBED + _CLOSING,
            params_min=2,
            params_noun="params",
        ),
        Command(
            "TOUCH",
            r"TOUCH <message id>\n",
            response="",
            decode=_decode_touch,
            states=_SUBSCRIBED + _CLOSING,
            params_min=1,
            params_noun="params",
        ),
        Command(
            "CLS",
            r"CLS\n",
            response="CLOSE_WAIT",
            decode=_decode_cls,
            states=_SUBSCRIBED,
            next_state=State.CLOSING,
        ),
        Command(
            "NOP",
            r"NOP\n",
            response="",
            decode=_decode_nop,
            states=_ANY,
        ),
    )
}
