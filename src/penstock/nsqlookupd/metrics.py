"""What nsqlookupd tells Prometheus."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock import __version__
from penstock.net.http_server import HttpServer, Request, Route, StreamingResponse
from penstock.net.prometheus import Family, Sample, exposition, labels
from penstock.nsqlookupd.long_poll import WaitingLookups
from penstock.nsqlookupd.registration import Producer
from penstock.nsqlookupd.registry import Registry
from penstock.nsqlookupd.tcp import Peers

__all__ = ["FAMILIES", "Metrics"]

INFO = Family("nsqlookupd_info", "gauge", "Always 1; what runs here.", ("version",))
TOPICS = Family("nsqlookupd_topics", "gauge", "Topics known, with or without a producer.")
CHANNELS = Family("nsqlookupd_channels", "gauge", "Channels known, with or without a producer.")
PRODUCERS = Family(
    "nsqlookupd_producers", "gauge", "nsqds connected, each in one state.", ("state",)
)
REGISTRATIONS = Family(
    "nsqlookupd_registrations", "gauge", "Topics of each producer, taken together."
)
CONNECTIONS = Family("nsqlookupd_connections", "gauge", "Open connections.", ("protocol",))
WAITING = Family("nsqlookupd_waiting_lookups", "gauge", "Lookups that wait for a change.")
REFUSALS = Family(
    "nsqlookupd_refusals_total", "counter", "Peers that were refused or given up.", ("reason",)
)

FAMILIES = (INFO, TOPICS, CHANNELS, PRODUCERS, REGISTRATIONS, CONNECTIONS, WAITING, REFUSALS)

_REASONS = ("connections", "limits", "protocol", "timeout")


@dataclass(slots=True, kw_only=True)
class Metrics:
    """Where the figures come from."""

    registry: Registry
    peers: Peers
    waiting: WaitingLookups
    tcp_refusals: Mapping[str, int]
    http: HttpServer | None = None  # which serves these figures, so that it is made after them

    def route(self) -> Route:
        """The row of the API's table."""
        return Route("GET", "/metrics", self._answer)

    def _answer(self, _: Request) -> StreamingResponse:
        samples = {
            INFO: [(labels(version=__version__), 1)],
            TOPICS: [("", len(self.registry.topics()))],
            CHANNELS: [("", self.registry.count_channels())],
            PRODUCERS: self._producers(),
            REGISTRATIONS: [("", sum(len(each.topics) for each in self.registry.producers))],
            CONNECTIONS: self._connections(),
            WAITING: [("", len(self.waiting))],
            REFUSALS: self._refusals(),
        }
        return exposition([(family, samples[family]) for family in FAMILIES])

    def _producers(self) -> Iterable[Sample]:
        self.registry.advance()
        states = [_state(producer) for producer in self.registry.producers]
        return [
            (labels(state=state), states.count(state)) for state in ("active", "draining", "lost")
        ]

    def _connections(self) -> Iterable[Sample]:
        http = self.http.connection_count if self.http is not None else 0
        return [(labels(protocol="tcp"), len(self.peers)), (labels(protocol="http"), http)]

    def _refusals(self) -> Iterable[Sample]:
        by_status = self.http.rejections_by_status if self.http is not None else {}
        return [
            *((labels(reason=reason), self.tcp_refusals.get(reason, 0)) for reason in _REASONS),
            *((labels(reason=f"http_{code}"), by_status[code]) for code in sorted(by_status)),
        ]


def _state(producer: Producer) -> str:
    if not producer.is_active:
        return "lost"
    return "draining" if producer.draining else "active"
