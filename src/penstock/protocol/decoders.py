"""How the bytes of each command become an event.

A decoder finds the buffer standing behind the command's line, and has three ways out. It moves the
buffer past the body, if the command has one, and returns what was asked for. It returns `NeedMore`,
and the command is decoded anew, from its line, when that much has come. Or it raises a
ProtocolError. The checks that all commands share have been made before: see
`penstock.protocol.command_table`.

The two commands that come in thousands are also taken by the run, without the general way:
`FinLine` and `maybe_fin_run`, and `penstock.protocol.command_cache`.
"""

import re
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from penstock.common.errors import ProtocolError
from penstock.common.names import maybe_name
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.command_cache import PublishLine
from penstock.protocol.events import (
    Auth,
    Cls,
    Fin,
    Identify,
    Nop,
    Rdy,
    Req,
    Sub,
    Touch,
)
from penstock.protocol.limits import Limits
from penstock.protocol.mpub import MultiBody
from penstock.protocol.text import quoted, verbatim

__all__ = [
    "FIN_LINE",
    "FinLine",
    "MultiPublish",
    "NeedMore",
    "Request",
    "decode_auth",
    "decode_cls",
    "decode_dmpub",
    "decode_dpub",
    "decode_fin",
    "decode_identify",
    "decode_mpub",
    "decode_nop",
    "decode_pub",
    "decode_rdy",
    "decode_req",
    "decode_sub",
    "decode_touch",
    "maybe_fin_run",
]

_INT32 = Struct(">i")
_INT32_BYTES = 4
_UINT64_MAX = 2**64 - 1
_UINT64_DIGITS_MAX = 20
_MESSAGE_ID_BYTES = 16


class Request(NamedTuple):
    """A command's line, and what a decoder needs to know beside it."""

    word: str
    params: list[bytes]
    line_start: int
    """Where the line begins in the buffer; where it ends is where the buffer stands."""
    buffer: ReceiveBuffer
    limits: Limits


class NeedMore(NamedTuple):
    """The body is not all here."""

    size: int
    """How many bytes it takes to get further, from the start of the line."""
    shortfall: ProtocolError
    """What the peer is told if its stream ends here."""


@dataclass(slots=True)
class MultiPublish:
    """A multi-publish whose line has been read, and whose body comes next."""

    topic: str
    word: str
    defer_ms: int
    body: MultiBody


# Publishing ---------------------------------------------------------------------------------------


def decode_pub(request: Request) -> PublishLine | NeedMore:
    return _publish_line(request, _topic(request), defer_ms=0)


def decode_dpub(request: Request) -> PublishLine | NeedMore:
    topic = _topic(request)
    return _publish_line(request, topic, _defer_ms(request))


def decode_mpub(request: Request) -> MultiPublish:
    # nsq compat: this one error repeats its code in the text.
    topic = _topic(request, prefix="E_BAD_TOPIC ")
    return MultiPublish(topic, request.word, 0, MultiBody(request.word, request.limits))


def decode_dmpub(request: Request) -> MultiPublish:
    topic = _topic(request)
    defer_ms = _defer_ms(request)
    return MultiPublish(topic, request.word, defer_ms, MultiBody(request.word, request.limits))


def _publish_line(request: Request, topic: str, defer_ms: int) -> PublishLine | NeedMore:
    """The line, if there is a message behind it; the buffer is put back to its start."""
    buffer = request.buffer
    line = buffer.data[request.line_start : buffer.start]
    size_max = request.limits.max_msg_size
    body = _maybe_body(request, _MESSAGE_BODY, size_max)
    if isinstance(body, NeedMore):
        return body
    buffer.start = request.line_start
    return PublishLine(line, topic, request.word, defer_ms, size_max)


# Consuming ----------------------------------------------------------------------------------------

# Ids that we give out are lowercase hex, so only a client's mistake goes the general way.
_FIN_RUN = re.compile(rb"(?:FIN [0-9a-f]{16}+\n)++")
_FIN_BYTES = len(b"FIN 0123456789abcdef\n")


class FinLine:
    """What FINs begin with. Whether FIN is allowed has been checked."""

    __slots__ = ()
    line = b"FIN "

    def maybe_only(self, data: bytes) -> Fin | None:
        """The FINs that `data` is, if it is nothing else."""
        if data[:4] != self.line:
            return None
        if len(data) == _FIN_BYTES and data.endswith(b"\n") and (only := data[4:20]).isalnum():
            return Fin([only])
        count, rest = divmod(len(data), _FIN_BYTES)
        if rest or data[_FIN_BYTES - 1 :: _FIN_BYTES] != b"\n" * count:
            return None
        ids = _ids_of_fins(data)
        # With as many ids as line ends, all of them where they belong, each id has its size.
        return Fin(ids) if len(ids) == count and b"".join(ids).isalnum() else None


FIN_LINE = FinLine()


def maybe_fin_run(buffer: ReceiveBuffer) -> Fin | None:
    """The FINs that come next, as many as there are in a row."""
    run = _FIN_RUN.match(buffer.data, buffer.start)
    if run is None:
        return None
    buffer.start = run.end()
    return Fin(_ids_of_fins(run[0]))


def _ids_of_fins(run: bytes) -> list[bytes]:
    return run[len(b"FIN ") : -len(b"\n")].split(b"\nFIN ")


def decode_fin(request: Request) -> Fin:
    return Fin([_message_id(request)])


def decode_req(request: Request) -> Req:
    message_id = _message_id(request)
    asked_ms = _number(request, 1, "timeout")
    delay_ms = min(asked_ms, request.limits.max_req_timeout_ms)
    return Req(message_id, delay_ms, clamped=delay_ms < asked_ms)


def decode_touch(request: Request) -> Touch:
    return Touch(_message_id(request))


def decode_rdy(request: Request) -> Rdy:
    count = _number(request, 0, "count") if request.params else 1
    count_max = request.limits.max_rdy_count
    if count > count_max:
        # nsq compat: the text shows the count as a signed number.
        shown = count if count < 2**63 else count - 2**64
        raise _invalid(f"RDY count {shown} out of range 0-{count_max}")
    return Rdy(count)


def decode_sub(request: Request) -> Sub:
    topic = _topic(request)
    channel = maybe_name(request.params[1])
    if channel is None:
        name = quoted(request.params[1])
        raise ProtocolError("E_BAD_CHANNEL", f"SUB channel name {name} is not valid")
    return Sub(topic, channel)


def decode_cls(_request: Request) -> Cls:
    return Cls()


# The connection -----------------------------------------------------------------------------------


def decode_nop(_request: Request) -> Nop:
    return Nop()


def decode_identify(request: Request) -> Identify | NeedMore:
    body = _maybe_body(request, _PLAIN_BODY, request.limits.max_body_size)
    return body if isinstance(body, NeedMore) else Identify(body)


def decode_auth(request: Request) -> Auth | NeedMore:
    if request.params:
        raise _invalid("AUTH invalid number of parameters")
    body = _maybe_body(request, _PLAIN_BODY, request.limits.max_body_size)
    return body if isinstance(body, NeedMore) else Auth(body)


# Parts --------------------------------------------------------------------------------------------


class _BodyKind(NamedTuple):
    """How the errors about a body speak of it."""

    code: str
    noun: str
    noun_when_too_big: str


_MESSAGE_BODY = _BodyKind("E_BAD_MESSAGE", "message body", "message")
_PLAIN_BODY = _BodyKind("E_BAD_BODY", "body", "body")


def _maybe_body(request: Request, kind: _BodyKind, size_max: int) -> bytes | NeedMore:
    """The sized body behind the line; the buffer is moved past it."""
    buffer, word = request.buffer, request.word
    data, start = buffer.data, buffer.start + _INT32_BYTES
    if start > len(data):
        shortfall = ProtocolError(kind.code, f"{word} failed to read {kind.noun} size")
        return NeedMore(start - request.line_start, shortfall)
    size = _INT32.unpack_from(data, buffer.start)[0]
    if size <= 0:
        raise ProtocolError(kind.code, f"{word} invalid {kind.noun} size {size}")
    if size > size_max:
        text = f"{word} {kind.noun_when_too_big} too big {size} > {size_max}"
        raise ProtocolError(kind.code, text)
    stop = start + size
    if stop > len(data):
        shortfall = ProtocolError(kind.code, f"{word} failed to read {kind.noun}")
        return NeedMore(stop - request.line_start, shortfall)
    buffer.start = stop
    return data[start:stop]


def _topic(request: Request, *, prefix: str = "") -> str:
    topic = maybe_name(request.params[0])
    if topic is None:
        text = f"{prefix}{request.word} topic name {quoted(request.params[0])} is not valid"
        raise ProtocolError("E_BAD_TOPIC", text)
    return topic


def _defer_ms(request: Request) -> int:
    defer_ms = _number(request, 1, "timeout")
    defer_ms_max = request.limits.max_defer_timeout_ms
    if defer_ms > defer_ms_max:
        raise _invalid(f"{request.word} timeout {defer_ms} out of range 0-{defer_ms_max}")
    return defer_ms


def _message_id(request: Request) -> bytes:
    message_id = request.params[0]
    if len(message_id) != _MESSAGE_ID_BYTES:
        raise _invalid("invalid message ID")
    return message_id


def _number(request: Request, index: int, noun: str) -> int:
    """A parameter of ASCII digits; no digit at all is 0, and more than 64 bits hold is their most.

    The reference's 64 bits wrap around there, which can turn a huge number into a small one.
    """
    digits = request.params[index]
    if digits and not digits.isdigit():
        raise _invalid(f"{request.word} could not parse {noun} {verbatim(digits)}")
    significant = digits.lstrip(b"0")
    if len(significant) > _UINT64_DIGITS_MAX:
        return _UINT64_MAX
    return min(int(significant or b"0"), _UINT64_MAX)


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError("E_INVALID", detail)
