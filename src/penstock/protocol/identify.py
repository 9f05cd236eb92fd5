"""IDENTIFY: what a client says of itself, and what the two sides agree on.

`negotiate` decides, and changes nothing: the TLS and the compression it grants are for the driver
to put in place, once the answer has gone out in clear.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock import NSQ_VERSION
from penstock.common.errors import ProtocolError
from penstock.common.go_struct import (
    Convert,
    as_bool,
    as_int32,
    as_int64,
    as_string,
    read_fields,
    write_fields,
)

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
    return write_fields(
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


def _invalid(noun: str, value: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"IDENTIFY {noun} ({value}) is invalid")


# Parsing ------------------------------------------------------------------------------------------


def parse_identify(body: bytes) -> IdentifyRequest:
    """The request in an IDENTIFY's body. Raises ProtocolError if it is not one."""
    try:
        return IdentifyRequest(**read_fields(body, _FIELDS))
    except ValueError:
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None


_FIELDS: Mapping[str, Convert] = {
    "client_id": as_string,
    "hostname": as_string,
    "user_agent": as_string,
    "feature_negotiation": as_bool,
    "heartbeat_interval": as_int64,
    "output_buffer_size": as_int64,
    "output_buffer_timeout": as_int64,
    "sample_rate": as_int32,
    "msg_timeout": as_int64,
    "tls_v1": as_bool,
    "snappy": as_bool,
    "deflate": as_bool,
    "deflate_level": as_int64,
    "topology_region": as_string,
    "topology_zone": as_string,
}
