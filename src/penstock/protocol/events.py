"""What a client asked for: the events that `ServerConnection.next_event` gives out.

The batch is the unit. A run of FINs is one event, and so is a run of publishes to one topic: what a
driver pays per event is spread over as many messages as one read brought. Everything here has been
checked as far as the bytes alone allow; whether the message is in flight, the topic is being
deleted or the client is authorised is the broker's to say.

They are msgspec's structs because those are made three times as fast as dataclasses. Those that
come in thousands are unknown to the garbage collector: nothing that they hold leads back to them.
"""

from typing import TypeAlias

from msgspec import Struct

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


class Publish(Struct, gc=False):
    """Messages for one topic, from one or several commands; each command is owed an OK."""

    topic: str
    bodies: list[bytes]
    oks: int
    """How many commands these are, so how many times OK is to be sent."""
    word: str
    """The command: PUB, MPUB, DPUB or DMPUB. Error codes and texts name it."""
    defer_ms: int = 0


class TopicNamed(Struct):
    """A multi-publish has named its topic, and its body is not all here or not valid.

    The reference checks authorisation and creates the topic before it reads the body. The
    `Publish`, or the error, follows.
    """

    topic: str
    word: str


class Fin(Struct, gc=False):
    """Messages that are done with."""

    ids: list[bytes]


class Req(Struct):
    """A message to be delivered again, after a delay that is already within the limit."""

    id: bytes
    delay_ms: int
    clamped: bool = False
    """Whether the client asked for more than `max_req_timeout_ms`."""


class Touch(Struct):
    """A message whose timeout starts again."""

    id: bytes


class Sub(Struct):
    """The connection becomes a consumer."""

    topic: str
    channel: str


class Rdy(Struct):
    """How many messages may be in flight to this consumer at once."""

    count: int


class Cls(Struct):
    """The consumer wants no further messages."""


class Nop(Struct):
    """A sign of life. Also given for an RDY after CLS, which is ignored."""


class Identify(Struct):
    """Who the client is and what it would negotiate: see `penstock.protocol.identify`."""

    body: bytes


class Auth(Struct):
    """The secret that the auth servers are asked about."""

    secret: bytes


Event: TypeAlias = (
    Publish | TopicNamed | Fin | Req | Touch | Sub | Rdy | Cls | Nop | Identify | Auth
)
