"""IDENTIFY: client metadata and feature negotiation.

`negotiate` only computes the result. The driver starts the granted TLS and compression after it has
sent the response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock import NSQ_VERSION
from penstock.common.errors import ProtocolError
from penstock.common.go_json import (
    Convert,
    as_bool,
    as_int32,
    as_int64,
    as_string,
    read_fields,
    to_json,
)

__all__ = ["IdentifyRequest", "Negotiated", "ServerOffer", "negotiate", "parse_identify"]

_HEARTBEAT_INTERVAL_MS_MIN = 1000
_MSG_TIMEOUT_MS_MIN = 1000
_OUTPUT_BUFFER_SIZE_MIN = 64
_SAMPLE_RATE_MAX = 99
_DEFLATE_LEVEL_DEFAULT = 6

# Value of a field that disables the feature.
_OFF = -1


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The fields of IDENTIFY, with the protocol's names. Times are in milliseconds."""

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
    """The server's settings and limits. The defaults are NSQ's, except that TLS and
    compression are off."""

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

    def defaults(self) -> "Negotiated":
        """Settings of a connection that has not sent IDENTIFY."""
        return Negotiated(
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            msg_timeout_ms=self.msg_timeout_ms,
            output_buffer_size=self.output_buffer_size,
            output_buffer_timeout_ms=self.output_buffer_timeout_ms,
        )


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Settings of a connection."""

    heartbeat_interval_ms: int | None
    """None: no heartbeats and no read deadline; SUB is rejected."""
    msg_timeout_ms: int
    output_buffer_size: int
    output_buffer_timeout_ms: int
    """0: no flush by time."""
    sample_rate: int = 0
    """Percentage of messages to deliver; 0 for all."""
    tls: bool = False
    """tls, snappy and deflate: to be started after the response is sent."""
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
    """The new settings of the connection, and the response data.

    `current` is the result of an earlier IDENTIFY, from which fields that the client leaves unset
    are taken. Raises ProtocolError for a value out of range or two compressions at once.
    """
    agreed = _settings(request, offer, current or offer.defaults())
    if not request.feature_negotiation:
        return agreed, b"OK"
    agreed = _with_features(agreed, request, offer)
    return agreed, _response(agreed, offer)


def _settings(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> Negotiated:
    # In the order in which NSQ reports errors.
    heartbeat_interval_ms = _heartbeat_interval_ms(request, offer, current)
    buffer_timeout_ms = _output_buffer_timeout_ms(request, offer, current)
    buffer_size = _output_buffer_size(request, offer, current)
    if not 0 <= request.sample_rate <= _SAMPLE_RATE_MAX:
        raise _out_of_range("sample rate", request.sample_rate)
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
    requested = request.heartbeat_interval
    if requested == _OFF:
        return None
    if requested == 0:
        return current.heartbeat_interval_ms
    if not _HEARTBEAT_INTERVAL_MS_MIN <= requested <= offer.max_heartbeat_interval_ms:
        raise _out_of_range("heartbeat interval", requested)
    return requested


def _output_buffer_timeout_ms(
    request: IdentifyRequest, offer: ServerOffer, current: Negotiated
) -> int:
    requested = request.output_buffer_timeout
    if requested == _OFF:
        return 0
    if requested == 0:
        return current.output_buffer_timeout_ms
    if not offer.min_output_buffer_timeout_ms <= requested <= offer.max_output_buffer_timeout_ms:
        raise _out_of_range("output buffer timeout", requested)
    return requested


def _output_buffer_size(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> int:
    requested = request.output_buffer_size
    if requested == _OFF:
        return 1
    if requested == 0:
        return current.output_buffer_size
    if not _OUTPUT_BUFFER_SIZE_MIN <= requested <= offer.max_output_buffer_size:
        raise _out_of_range("output buffer size", requested)
    return requested


def _msg_timeout_ms(request: IdentifyRequest, offer: ServerOffer, current: Negotiated) -> int:
    requested = request.msg_timeout
    if requested == 0:
        return current.msg_timeout_ms
    if not _MSG_TIMEOUT_MS_MIN <= requested <= offer.max_msg_timeout_ms:
        raise _out_of_range("msg timeout", requested)
    return requested


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
    # The order of the keys is NSQ's.
    return to_json(
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


def _out_of_range(noun: str, value: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"IDENTIFY {noun} ({value}) is invalid")


# Parsing ------------------------------------------------------------------------------------------


def parse_identify(body: bytes) -> IdentifyRequest:
    """Parse the body of an IDENTIFY. Raises ProtocolError."""
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
