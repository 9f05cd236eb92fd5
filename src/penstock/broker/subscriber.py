"""A consumer as its channel sees it: how much it may be sent, and what it has not answered yet."""

from typing import Protocol

from penstock.broker.in_flight import InFlight
from penstock.broker.topology import UNKNOWN_LOCATION, Locality, Location

__all__ = ["Subscriber", "SubscriberConnection"]


class SubscriberConnection(Protocol):
    """The other side of a subscriber: a connection, or a recorder in a test."""

    def deliver(self, frames: list[bytes]) -> None:
        """Send these message frames."""

    def channel_gone(self) -> None:
        """The channel or its topic was deleted: close without a word."""


class Subscriber:
    """RDY is a ceiling on what is in flight, not a credit that is used up."""

    __slots__ = (
        "blocked",
        "connection",
        "finish_count",
        "in_flight",
        "is_ready",
        "locality",
        "location",
        "message_count",
        "msg_timeout_ns",
        "rdy",
        "requeue_count",
        "sample_rate",
    )

    def __init__(
        self,
        connection: SubscriberConnection,
        msg_timeout_ns: int,
        sample_rate: int = 0,
        location: Location = UNKNOWN_LOCATION,
    ) -> None:
        self.connection = connection
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate  # percent of the messages to deliver; 0 for all
        self.location = location
        self.locality = Locality.GLOBAL  # its channel's to say, which knows where we are
        self.rdy = 0
        self.blocked = False  # the peer has not read what it was sent; nothing more for now
        self.is_ready = False  # is in its channel's round of ready subscribers
        self.in_flight = InFlight()
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    def capacity(self) -> int:
        """How many messages may be sent now; not positive for none."""
        if self.blocked:
            return 0
        in_flight = self.in_flight  # whose len() this is, at the cost of a call less
        return self.rdy - len(in_flight.fresh) - len(in_flight.timed)

    @property
    def delivered_counts(self) -> list[int]:
        """The messages it was sent, by locality: all went equally far."""
        return [self.message_count if each is self.locality else 0 for each in Locality]
