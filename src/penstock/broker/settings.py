"""Settings of the broker."""

from dataclasses import dataclass

from penstock.broker.subscriber import Location
from penstock.common.clock import SECOND_NS

__all__ = ["BrokerSettings"]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits and policies; the defaults are nsqd's."""

    node_id: int = 0
    mem_queue_size: int = 10_000
    max_msg_timeout_ns: int = 15 * 60 * SECOND_NS
    max_channel_consumers: int = 0
    max_topics: int = 0
    """0 for no limit, also for the other `max_` counts."""
    max_channels_per_topic: int = 0
    requeue_on_disconnect: bool = True
    location: Location | None = None
    """Location of this node, if it prefers consumers near it."""
    latency_window_ns: int = 0
    """Length of the latency windows of channels; 0 for none."""
