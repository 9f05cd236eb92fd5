"""Metrics of nsqlookupd for Prometheus."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock import __version__
from penstock.net.http_server import HttpServer, Request, Route, StreamingResponse
from penstock.net.prometheus import Family, Sample, exposition, labels
from penstock.nsqlookupd.long_poll import LongPolls
from penstock.nsqlookupd.registry import RegisteredProducer, Registry
from penstock.nsqlookupd.tcp import NsqdConnections

__all__ = ["FAMILIES", "LookupdMetrics"]

INFO = Family("nsqlookupd_info", "gauge", "Always 1; labelled with the version.", ("version",))
TOPICS = Family("nsqlookupd_topics", "gauge", "Topics known, with or without a producer.")
CHANNELS = Family("nsqlookupd_channels", "gauge", "Channels known, with or without a producer.")
PRODUCERS = Family("nsqlookupd_producers", "gauge", "Connected nsqds by state.", ("state",))
REGISTRATIONS = Family("nsqlookupd_registrations", "gauge", "Topic registrations of all producers.")
CONNECTIONS = Family("nsqlookupd_connections", "gauge", "Open connections.", ("protocol",))
WAITING = Family("nsqlookupd_waiting_lookups", "gauge", "Long-polling lookups in progress.")
REFUSALS = Family(
    "nsqlookupd_refusals_total",
    "counter",
    "Connections that were refused or timed out.",
    ("reason",),
)

FAMILIES = (INFO, TOPICS, CHANNELS, PRODUCERS, REGISTRATIONS, CONNECTIONS, WAITING, REFUSALS)

_REASONS = ("connections", "limits", "protocol", "timeout")


@dataclass(slots=True, kw_only=True)
class LookupdMetrics:
    """The sources of the metrics."""

    registry: Registry
    connections: NsqdConnections
    long_polls: LongPolls
    tcp_refusals: Mapping[str, int]
    http: HttpServer | None = None  # set later, because it serves these metrics

    def route(self) -> Route:
        """The route of /metrics."""
        return Route("GET", "/metrics", self._metrics)

    def _metrics(self, _: Request) -> StreamingResponse:
        samples = {
            INFO: [(labels(version=__version__), 1)],
            TOPICS: [("", len(self.registry.topics()))],
            CHANNELS: [("", self.registry.count_channels())],
            PRODUCERS: self._producers(),
            REGISTRATIONS: [("", sum(len(each.topics) for each in self.registry.producers))],
            CONNECTIONS: self._connections(),
            WAITING: [("", len(self.long_polls))],
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
        return [(labels(protocol="tcp"), len(self.connections)), (labels(protocol="http"), http)]

    def _refusals(self) -> Iterable[Sample]:
        by_status = self.http.rejections_by_status if self.http is not None else {}
        return [
            *((labels(reason=reason), self.tcp_refusals.get(reason, 0)) for reason in _REASONS),
            *((labels(reason=f"http_{code}"), by_status[code]) for code in sorted(by_status)),
        ]


def _state(producer: RegisteredProducer) -> str:
    if not producer.is_active:
        return "lost"
    return "draining" if producer.is_draining else "active"
