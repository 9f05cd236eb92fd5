"""Types at the interface of `ServerConnection`: its limits, its states, and the events it returns.

The parser groups commands: a run of FINs is one event, and so is a run of publishes to one topic.
The cost per event is thus shared by all messages of one read. An event has passed all checks that
need only its bytes. The broker checks the rest: whether the message is in flight, whether the topic
is being deleted, whether the client is authorised.

Events are msgspec structs because these are created three times as fast as dataclasses. The two
most frequent are not tracked by the garbage collector (gc=False): they cannot be part of a cycle.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

__all__ = [
    "LINE_BYTES_MAX",
    "Auth",
    "Cls",
    "Event",
    "Fin",
    "Identify",
    "Limits",
    "Nop",
    "Publish",
    "Rdy",
    "Req",
    "State",
    "Sub",
    "TopicNamed",
    "Touch",
]

# NSQ reads lines into a buffer of this size, the newline included.
LINE_BYTES_MAX = 16 * 1024

# Minimum size of a message in a multi-publish: its size field and one byte.
_MULTI_ENTRY_BYTES_MIN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits on client requests. The defaults are NSQ's."""

    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 60 * 60 * 1000
    max_defer_timeout_ms: int = 60 * 60 * 1000

    @property
    def max_messages(self) -> int:
        """Maximum messages in one multi-publish."""
        return (self.max_body_size - 4) // _MULTI_ENTRY_BYTES_MIN


class State(IntEnum):
    """State of a connection: INIT --SUB--> SUBSCRIBED --CLS--> CLOSING.

    A producer stays in INIT: IDENTIFY, AUTH and publishes do not change the state. `/stats` reports
    these numbers.
    """

    INIT = 0
    DISCONNECTED = 1
    CONNECTED = 2
    SUBSCRIBED = 3
    CLOSING = 4


class Publish(Struct, gc=False):
    """Messages for one topic, from one or more commands."""

    topic: str
    bodies: list[bytes]
    oks: int
    """Number of commands, each of which is answered with OK."""
    command: str
    """PUB, MPUB, DPUB or DMPUB, for error codes and texts."""
    defer_ms: int = 0


class TopicNamed(Struct):
    """A multi-publish has named its topic, but its body is incomplete or invalid.

    NSQ checks authorisation and creates the topic before it reads the body. The
    `Publish` or the error follows.
    """

    topic: str
    command: str


class Fin(Struct, gc=False):
    """Finish messages."""

    ids: list[bytes]


class Req(Struct):
    """Requeue a message."""

    id: bytes
    delay_ms: int
    clamped: bool = False
    """Whether the client requested more than `max_req_timeout_ms`, to which `delay_ms` was cut."""


class Touch(Struct):
    """Restart the timeout of a message."""

    id: bytes


class Sub(Struct):
    """Subscribe to a channel."""

    topic: str
    channel: str


class Rdy(Struct):
    """Set the maximum number of messages in flight to this consumer."""

    count: int


class Cls(Struct):
    """Stop deliveries to this consumer."""


class Nop(Struct):
    """No operation, as a response to a heartbeat. Also returned for an RDY after CLS, which is
    ignored."""


class Identify(Struct):
    """Client metadata and features to negotiate, as JSON: see `penstock.protocol.identify`."""

    body: bytes


class Auth(Struct):
    """The secret to send to the auth servers."""

    secret: bytes


Event: TypeAlias = (
    Publish | TopicNamed | Fin | Req | Touch | Sub | Rdy | Cls | Nop | Identify | Auth
)
