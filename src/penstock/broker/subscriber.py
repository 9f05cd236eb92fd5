"""A channel's view of a consumer: its RDY count, its settings, and its messages in flight."""

from typing import Protocol

from penstock.broker.in_flight import InFlight
from penstock.broker.topology import UNKNOWN_LOCATION, Locality, Location

__all__ = ["Subscriber", "SubscriberConnection"]


class SubscriberConnection(Protocol):
    """The connection of a subscriber, or a recorder in a test."""

    def deliver(self, frames: list[bytes]) -> None:
        """Sends message frames."""

    def channel_gone(self) -> None:
        """Closes the connection, because the channel or its topic was deleted."""


class Subscriber:
    """One subscriber. RDY limits its messages in flight; deliveries do not reduce it."""

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
        self.sample_rate = sample_rate
        """Percentage of messages to deliver; 0 for all."""
        self.location = location
        self.locality = Locality.GLOBAL
        """Set by the channel."""
        self.rdy = 0
        self.blocked = False
        """Whether the transport's write buffer is full."""
        self.is_ready = False
        """Whether the subscriber is in its channel's queue of ready subscribers."""
        self.in_flight = InFlight()
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    def capacity(self) -> int:
        """Number of messages that may be sent now; 0 or less for none."""
        if self.blocked:
            return 0
        in_flight = self.in_flight  # Inlined len(in_flight): saves a call per delivery.
        return self.rdy - len(in_flight.fresh) - len(in_flight.timed)

    @property
    def delivered_counts(self) -> list[int]:
        """Number of messages sent, by locality: all have the subscriber's own."""
        return [self.message_count if each is self.locality else 0 for each in Locality]
