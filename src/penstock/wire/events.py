"""What a client asked for: the events that `ServerConnection.next_event` gives out.

The batch is the unit. A run of FINs is one event, and so is a run of publishes to one topic: what a
driver pays per event is spread over as many messages as one read brought. Everything here has been
checked as far as the bytes alone allow; whether the message is in flight, the topic is being
deleted or the client is authorised is the broker's to say.
"""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Auth",
    "Cls",
    "Event",
    "Fin",
    "Identify",
    "Nop",
    "Publish",
    "Rdy",
    "Req",
    "Sub",
    "TopicNamed",
    "Touch",
]


@dataclass(slots=True)
class Publish:
    """Messages for one topic, from one or several commands; each command is owed an OK."""

    topic: str
    bodies: list[bytes]
    oks: int
    """How many commands these are, so how many times OK is to be sent."""
    word: str
    """The command: PUB, MPUB, DPUB or DMPUB. Error codes and texts name it."""
    defer_ms: int = 0


@dataclass(slots=True)
class TopicNamed:
    """A multi-publish has named its topic, and its body is not all here or not valid.

    The reference checks authorisation and creates the topic before it reads the body. The
    `Publish`, or the error, follows.
    """

    topic: str
    word: str


@dataclass(slots=True)
class Fin:
    """Messages that are done with."""

    ids: list[bytes]


@dataclass(slots=True)
class Req:
    """A message to be delivered again, after a delay that is already within the limit."""

    id: bytes
    delay_ms: int
    clamped: bool = False
    """Whether the client asked for more than `max_req_timeout_ms`."""


@dataclass(slots=True)
class Touch:
    """A message whose timeout starts again."""

    id: bytes


@dataclass(slots=True)
class Sub:
    """The connection becomes a consumer."""

    topic: str
    channel: str


@dataclass(slots=True)
class Rdy:
    """How many messages may be in flight to this consumer at once."""

    count: int


@dataclass(slots=True)
class Cls:
    """The consumer wants no further messages."""


@dataclass(slots=True)
class Nop:
    """A sign of life. Also given for an RDY after CLS, which is ignored."""


@dataclass(slots=True)
class Identify:
    """Who the client is and what it would negotiate: see `penstock.wire.identify`."""

    body: bytes


@dataclass(slots=True)
class Auth:
    """The secret that the auth servers are asked about."""

    secret: bytes


Event: TypeAlias = (
    Publish | TopicNamed | Fin | Req | Touch | Sub | Rdy | Cls | Nop | Identify | Auth
)
