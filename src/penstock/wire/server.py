"""The server's side of a connection: bytes in, events out."""

from dataclasses import dataclass
from enum import IntEnum

from penstock.wire.events import Event

__all__ = ["LINE_BYTES_MAX", "Limits", "LineTooLong", "ServerConnection", "State"]

LINE_BYTES_MAX = 16384


class State(IntEnum):
    INIT = 0
    DISCONNECTED = 1
    CONNECTED = 2
    SUBSCRIBED = 3
    CLOSING = 4


@dataclass(frozen=True, slots=True)
class Limits:
    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 3_600_000


class LineTooLong(Exception):
    """Raised by next_event: close the connection, send nothing. (Will be in penstock.wire.server.)"""


class ServerConnection:
    state: State
    heartbeats_enabled: bool
    tls_required: bool

    def __init__(self, limits: Limits, *, tls_required: bool = False) -> None:
        """`tls_required`: set it to False on the connection once TLS is up."""

    def receive_data(self, data: bytes) -> None:
        raise NotImplementedError

    def next_event(self) -> Event | None:
        raise NotImplementedError

    def receive_eof(self) -> None:
        raise NotImplementedError

    def take_unread(self) -> bytes:
        """Hand over what was received and not parsed, and forget it."""
        raise NotImplementedError
