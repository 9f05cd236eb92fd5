"""IDENTIFY: what a client says of itself, and what the two sides agree on.

The JSON is read as Go's decoder reads it into a struct, because clients have come to depend on it:
names match in any case, of two with the same name the later counts, null says nothing, an unknown
name may hold anything, and a value of the wrong type spoils the whole, even where a later one would
have replaced it.

`negotiate` decides, and changes nothing: the TLS and the compression it grants are for the driver
to put in place, once the answer has gone out in clear.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from penstock import NSQ_VERSION
from penstock.errors import ProtocolError

__all__ = ["IdentifyRequest", "Negotiated", "ServerOffer", "negotiate", "parse_identify"]

_HEARTBEAT_INTERVAL_MS_MIN = 1000
_MSG_TIMEOUT_MS_MIN = 1000
_OUTPUT_BUFFER_SIZE_MIN = 64
_SAMPLE_RATE_MAX = 99
_DEFLATE_LEVEL_DEFAULT = 6

# In the fields that a client may leave to the server, this switches the feature off.
_OFF = -1


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The fields of an IDENTIFY, under their names on the wire. Times are milliseconds."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True)
class ServerOffer:
    """What the server has to offer and where its limits are. The defaults are the reference's, but
    TLS and compression are offered only by a server that says so."""

    version: str = NSQ_VERSION
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    heartbeat_interval_ms: int = 30_000
    max_heartbeat_interval_ms: int = 60_000
    output_buffer_size: int = 16 * 1024
    max_output_buffer_size: int = 64 * 1024
    output_buffer_timeout_ms: int = 250
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    max_deflate_level: int = 6
    auth_required: bool = False
    topology_region: str = ""
    topology_zone: str = ""

    def unasked(self) -> "Negotiated":
        """What holds on a connection that has not sent IDENTIFY."""
        return Negotiated(
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            msg_timeout_ms=self.msg_timeout_ms,
            output_buffer_size=self.output_buffer_size,
            output_buffer_timeout_ms=self.output_buffer_timeout_ms,
        )


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What holds on a connection."""

    heartbeat_interval_ms: int | None
    """None: there are no heartbeats, no read deadline, and SUB is refused."""
    msg_timeout_ms: int
    output_buffer_size: int
    output_buffer_timeout_ms: int
    """0: nothing is flushed for having waited long."""
    sample_rate: int = 0
    """Percentage of messages to deliver; 0 for all of them."""
    tls: bool = False
    """These three: to be put in place now, after the answer."""
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL_DEFAULT
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""


# Negotiating --------------------------------------------------------------------------------------


def negotiate(
    request: IdentifyRequest, offer: ServerOffer, current: Negotiated | None = None
) -> tuple[Negotiated, bytes]:
    """What holds from now on, and the data of the response that says so.

    `current` is what an earlier IDENTIFY has brought about: what the client leaves open stays as it
    was then. Raises ProtocolError for a value out of range, and for two compressions at once.
    """
    agreed = _settings(request, offer, current or offer.unasked())
    if not request.feature_negotiation:
        return agreed, b"OK"
    agreed = _with_features(agreed, request, offer)
    return agreed, _response(agreed, offer)


def _settings(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> Negotiated:
    # The order is the order in which mistakes are reported.
    heartbeat_interval_ms = _heartbeat_interval_ms(request, offer, current)
    buffer_timeout_ms = _output_buffer_timeout_ms(request, offer, current)
    buffer_size = _output_buffer_size(request, offer, current)
    if not 0 <= request.sample_rate <= _SAMPLE_RATE_MAX:
        raise _invalid("sample rate", request.sample_rate)
    return Negotiated(
        heartbeat_interval_ms=heartbeat_interval_ms,
        msg_timeout_ms=_msg_timeout_ms(request, offer, current),
        output_buffer_size=buffer_size,
        output_buffer_timeout_ms=0 if request.output_buffer_size == _OFF else buffer_timeout_ms,
        sample_rate=request.sample_rate,
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
    )


def _heartbeat_interval_ms(
    request: IdentifyRequest, offer: ServerOffer, current: Negotiated
) -> int | None:
    asked = request.heartbeat_interval
    if asked == _OFF:
        return None
    if asked == 0:
        return current.heartbeat_interval_ms
    if not _HEARTBEAT_INTERVAL_MS_MIN <= asked <= offer.max_heartbeat_interval_ms:
        raise _invalid("heartbeat interval", asked)
    return asked


def _output_buffer_timeout_ms(
    request: IdentifyRequest, offer: ServerOffer, current: Negotiated
) -> int:
    asked = request.output_buffer_timeout
    if asked == _OFF:
        return 0
    if asked == 0:
        return current.output_buffer_timeout_ms
    if not offer.min_output_buffer_timeout_ms <= asked <= offer.max_output_buffer_timeout_ms:
        raise _invalid("output buffer timeout", asked)
    return asked


def _output_buffer_size(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> int:
    asked = request.output_buffer_size
    if asked == _OFF:
        return 1
    if asked == 0:
        return current.output_buffer_size
    if not _OUTPUT_BUFFER_SIZE_MIN <= asked <= offer.max_output_buffer_size:
        raise _invalid("output buffer size", asked)
    return asked


def _msg_timeout_ms(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> int:
    asked = request.msg_timeout
    if asked == 0:
        return current.msg_timeout_ms
    if not _MSG_TIMEOUT_MS_MIN <= asked <= offer.max_msg_timeout_ms:
        raise _invalid("msg timeout", asked)
    return asked


def _with_features(agreed: Negotiated, request: IdentifyRequest, offer: ServerOffer) -> Negotiated:
    snappy = offer.snappy and request.snappy
    deflate = offer.deflate and request.deflate
    if snappy and deflate:
        text = "cannot enable both deflate and snappy compression"
        raise ProtocolError("E_IDENTIFY_FAILED", text)
    level = _DEFLATE_LEVEL_DEFAULT
    if deflate and request.deflate_level > 0:
        level = request.deflate_level
    return replace(
        agreed,
        tls=offer.tls and request.tls_v1,
        snappy=snappy,
        deflate=deflate,
        deflate_level=min(level, offer.max_deflate_level),
    )


def _response(agreed: Negotiated, offer: ServerOffer) -> bytes:
    # The order of the keys is the reference's.
    return _go_json(
        {
            "max_rdy_count": offer.max_rdy_count,
            "version": offer.version,
            "max_msg_timeout": offer.max_msg_timeout_ms,
            "msg_timeout": agreed.msg_timeout_ms,
            "tls_v1": agreed.tls,
            "deflate": agreed.deflate,
            "deflate_level": agreed.deflate_level,
            "max_deflate_level": offer.max_deflate_level,
            "snappy": agreed.snappy,
            "sample_rate": agreed.sample_rate,
            "auth_required": offer.auth_required,
            "output_buffer_size": agreed.output_buffer_size,
            "output_buffer_timeout": agreed.output_buffer_timeout_ms,
            "topology_region": offer.topology_region,
            "topology_zone": offer.topology_zone,
        }
    )


# Go escapes these so that JSON may stand inside HTML and JavaScript.
_GO_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def _go_json(value: Mapping[str, object]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_GO_ESCAPES).encode("utf-8", "replace")


def _invalid(noun: str, value: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"IDENTIFY {noun} ({value}) is invalid")


# Parsing ------------------------------------------------------------------------------------------


class _Number:
    """A JSON number as it was written, since what it may be depends on the field."""

    __slots__ = ("literal",)

    def __init__(self, literal: str) -> None:
        self.literal = literal


def parse_identify(body: bytes) -> IdentifyRequest:
    """The request in an IDENTIFY's body. Raises ProtocolError if it is not one."""
    # ValueError is what is not JSON or not of a field's type; RecursionError is nested too deep.
    try:
        return IdentifyRequest(**_fields(_parse_json(body)))  # type: ignore[arg-type]
    except (ValueError, RecursionError):
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None


def _parse_json(body: bytes) -> object:
    """Objects become tuples of pairs, so that repeated names are seen, and arrays become lists."""
    return json.loads(
        # Bytes that are not UTF-8 are allowed in strings: see `_string`.
        body.decode("utf-8", "surrogateescape"),
        object_pairs_hook=tuple,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse,
    )


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _fields(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, tuple):
        raise ValueError("not an object")
    return dict(_known_fields(value))


def _known_fields(pairs: Iterable[tuple[str, object]]) -> Iterable[tuple[str, object]]:
    for name, value in pairs:
        # Beside A to Z, Go folds two more letters: the Kelvin sign, and the long s.
        folded = name.lower().replace("\u017f", "s")
        convert = _CONVERTERS.get(folded)
        if convert is not None and value is not None:
            yield folded, convert(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    # What UTF-8 cannot hold, raw or escaped, is replaced as Go does: one mark for each byte.
    return re.sub("[\ud800-\udfff]", "\ufffd", value)


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a bool")
    return value


def _int64(value: object) -> int:
    return _int(value, bits=64)


def _int32(value: object) -> int:
    return _int(value, bits=32)


def _int(value: object, bits: int) -> int:
    if not isinstance(value, _Number) or not re.fullmatch(r"-?[0-9]{1,19}", value.literal):
        raise ValueError("not an integer")
    number = int(value.literal)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"more than {bits} bits")
    return number


_CONVERTERS: Mapping[str, Callable[[object], object]] = {
    "client_id": _string,
    "hostname": _string,
    "user_agent": _string,
    "feature_negotiation": _bool,
    "heartbeat_interval": _int64,
    "output_buffer_size": _int64,
    "output_buffer_timeout": _int64,
    "sample_rate": _int32,
    "msg_timeout": _int64,
    "tls_v1": _bool,
    "snappy": _bool,
    "deflate": _bool,
    "deflate_level": _int64,
    "topology_region": _string,
    "topology_zone": _string,
}
