"""nsqlookupd's HTTP API: lookups, nodes, and operations on topics and channels.

Paths, arguments, responses and error codes are NSQ's, byte for byte. Extensions, which do
not change the response to a request of a standard client:

- `GET /lookup?topic=T&wait=30s&index=N` waits until the result differs from that of index N;
- `for=producer` of /lookup and /nodes leaves out draining nodes; all responses mark draining nodes
  with `draining`;
- /nodes shows the `node_id` of nsqds that send it;
- `GET /metrics`.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock import NSQ_VERSION
from penstock.common import names
from penstock.common.clock import SECOND_NS
from penstock.common.durations import parse_duration
from penstock.common.errors import LimitReachedError
from penstock.common.logs import Logger
from penstock.net.http_server import (
    PLAIN_TEXT,
    HttpError,
    Request,
    Response,
    Route,
    error_response,
    json_response,
    to_json,
)
from penstock.nsqlookupd.long_poll import LongPolls
from penstock.nsqlookupd.registry import (
    UNKNOWN_INDEX,
    RegisteredProducer,
    Registration,
    Registry,
    Tombstone,
)

__all__ = ["LookupdHttpApi", "LookupdHttpServices"]

INDEX_HEADER = "X-Penstock-Index"

# nsq compat: Go's zero time in nanoseconds, for a tombstone that was never set.
_NEVER_NS = -6795364578871345152

# With 200 producers, a response and its cached wire form take 40 kB each.
CACHED_LOOKUPS_MAX = 256

_INDEX = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdHttpServices:
    """Dependencies of the endpoints."""

    registry: Registry
    long_polls: LongPolls
    log: Logger
    max_lookup_wait_ns: int


class LookupdHttpApi:
    """The endpoints and their routes."""

    def __init__(self, services: LookupdHttpServices) -> None:
        self._registry = services.registry
        self._long_polls = services.long_polls
        self._log = services.log
        self._wait_ns_max = services.max_lookup_wait_ns
        # Responses of /lookup with the index for which they are valid: many clients ask for the
        # same topic.
        self._cached: dict[tuple[str, bool, bool], tuple[int, Response]] = {}

    def routes(self) -> list[Route]:
        """The routes of the endpoints."""
        return [
            Route("GET", "/ping", lambda _: "OK", response_format=PLAIN_TEXT),
            Route("GET", "/info", lambda _: {"version": NSQ_VERSION}),
            Route("GET", "/topics", self._topics),
            Route("GET", "/channels", self._channels),
            Route("GET", "/lookup", self._lookup),
            Route("GET", "/nodes", self._nodes),
            Route("GET", "/debug", self._debug),
            Route("POST", "/topic/create", self._create_topic),
            Route("POST", "/topic/delete", self._delete_topic),
            Route("POST", "/topic/tombstone", self._tombstone),
            Route("POST", "/channel/create", self._create_channel),
            Route("POST", "/channel/delete", self._delete_channel),
        ]

    # Queries.

    def _topics(self, _: Request) -> Response:
        return json_response(200, b'{"topics":%b}' % _names(self._registry.topics()))

    def _channels(self, request: Request) -> Response:
        topic = _required(request.args, "topic")
        return json_response(200, b'{"channels":%b}' % _names(self._registry.channels(topic)))

    def _lookup(self, request: Request) -> "Response | asyncio.Future[Response]":
        args = request.args
        topic = _required(args, "topic")
        for_producer = _is_for_producer(args)
        if "wait" not in args and "index" not in args:
            return self._lookup_response(topic, for_producer=for_producer)
        index, wait_ns = _index(args), min(_wait_ns(args), self._wait_ns_max)
        if self._registry.index(topic) != index or not wait_ns or self._long_polls.is_full:
            return self._lookup_response(topic, for_producer=for_producer, with_index=True)
        return self._lookup_later(topic, wait_ns / SECOND_NS, for_producer=for_producer)

    def _lookup_later(
        self, topic: str, seconds: float, *, for_producer: bool
    ) -> "asyncio.Future[Response]":
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def on_change(_: object) -> None:
            response.set_result(
                self._lookup_response(topic, for_producer=for_producer, with_index=True)
            )

        self._long_polls.wait(topic, seconds).add_done_callback(on_change)
        return response

    def _lookup_response(
        self, topic: str, *, for_producer: bool, with_index: bool = False
    ) -> Response:
        """The response to /lookup; cached until the topic's index changes."""
        index = self._registry.index(topic)
        headers = ((INDEX_HEADER, str(index)),) if with_index else ()
        if index == UNKNOWN_INDEX:
            return error_response(404, "TOPIC_NOT_FOUND", extra_headers=headers)
        key = topic, for_producer, with_index
        cached = self._cached.get(key)
        if cached is not None and cached[0] == index:
            return cached[1]
        body = self._render_lookup(topic, for_producer=for_producer)
        response = json_response(200, body, extra_headers=headers)
        if len(self._cached) >= CACHED_LOOKUPS_MAX:
            self._cached.clear()
        self._cached[key] = index, response
        return response

    def _render_lookup(self, topic: str, *, for_producer: bool) -> bytes:
        found = self._registry.lookup(topic)
        assert found is not None, "a topic with an index is known"
        producers = _select(found.producers, for_producer=for_producer)
        return b'{"channels":%b,"producers":[%b]}' % (
            _names(found.channels),
            b",".join(map(_render_lookup_producer, producers)),
        )

    def _nodes(self, request: Request) -> Response:
        producers = self._registry.active_producers()
        chosen = _select(producers, for_producer=_is_for_producer(request.args))
        return json_response(200, b'{"producers":[%b]}' % b",".join(map(self._render_node, chosen)))

    def _render_node(self, producer: RegisteredProducer) -> bytes:
        tombstones = self._registry.tombstones_of(producer)
        return b'%b,"tombstones":[%b],"topics":%b%b%b}' % (
            _render_prefix(producer),
            ",".join(["true" if is_hidden else "false" for is_hidden in tombstones]).encode(),
            _names([registration.topic for registration in producer.topics]),
            _node_id_suffix(producer),
            _draining_suffix(producer),
        )

    def _debug(self, _: Request) -> object:
        # Go writes the keys of maps in order.
        registrations = sorted(self._registry.registrations(), key=_key)
        return {
            _key(registration): [
                _debug_entry(producer, stone) for producer, stone in registration.producers.items()
            ]
            for registration in registrations
            if registration.producers
        }

    # Topics and channels.

    def _create_topic(self, request: Request) -> None:
        topic = _name(request.args, "topic")
        self._create(topic)
        self._log.info("DB: adding topic(%s)", topic)

    def _delete_topic(self, request: Request) -> None:
        topic = _required(request.args, "topic")
        for deleted in self._registry.delete_topic(topic):
            if deleted.channel:
                self._log.info("DB: removing channel(%s) from topic(%s)", deleted.channel, topic)
            else:
                self._log.info("DB: removing topic(%s)", topic)

    def _tombstone(self, request: Request) -> None:
        topic = _required(request.args, "topic")
        node = _required(request.args, "node")
        self._log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._registry.tombstone(topic, node)

    def _create_channel(self, request: Request) -> None:
        topic, channel = _name(request.args, "topic"), _name(request.args, "channel")
        self._create(topic, channel)
        self._log.info("DB: adding channel(%s) in topic(%s)", channel, topic)

    def _delete_channel(self, request: Request) -> None:
        topic, channel = _name(request.args, "topic"), _name(request.args, "channel")
        if not self._registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)

    def _create(self, topic: str, channel: str = "") -> None:
        try:
            self._registry.create(topic, channel)
        except LimitReachedError as failure:
            self._log.error("DB: refused to add topic(%s) - %s", topic, failure)
            raise HttpError(503, "LIMIT_REACHED") from failure


# Arguments ----------------------------------------------------------------------------------------


def _required(args: dict[str, str], name: str) -> str:
    """A required argument, which may be empty."""
    if name not in args:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return args[name]


def _name(args: dict[str, str], which: str) -> str:
    name = _required(args, which)
    if not names.is_valid(name):
        raise HttpError(400, f"INVALID_ARG_{which.upper()}")
    return name


def _is_for_producer(args: dict[str, str]) -> bool:
    asker = args.get("for", "consumer")
    if asker not in ("consumer", "producer"):
        raise HttpError(400, "INVALID_ARG_FOR")
    return asker == "producer"


def _wait_ns(args: dict[str, str]) -> int:
    try:
        wait_ns = parse_duration(args.get("wait", "0"))
    except ValueError:
        raise HttpError(400, "INVALID_ARG_WAIT") from None
    if wait_ns < 0:
        raise HttpError(400, "INVALID_ARG_WAIT")
    return wait_ns


def _index(args: dict[str, str]) -> int:
    text = args.get("index", str(UNKNOWN_INDEX))
    if not _INDEX.fullmatch(text):
        raise HttpError(400, "INVALID_ARG_INDEX")
    return int(text)


# Rendering ----------------------------------------------------------------------------------------


def _names(valid_names: Iterable[str]) -> bytes:
    """A JSON list. Valid names need no escaping."""
    joined = '","'.join(valid_names)
    return f'["{joined}"]'.encode() if joined else b"[]"


def _select(producers: list[RegisteredProducer], *, for_producer: bool) -> list[RegisteredProducer]:
    """Leaves out draining nodes for producers; consumers still have to empty them."""
    return [node for node in producers if not node.is_draining] if for_producer else producers


def _render_prefix(producer: RegisteredProducer) -> bytes:
    """The common fields of a producer, without the closing brace. Cached: they never change."""
    if not producer.rendered:
        producer.rendered = to_json(_fields(producer)).removesuffix(b"}")
    return producer.rendered


def _node_id_suffix(producer: RegisteredProducer) -> bytes:
    node_id = producer.info.node_id
    return b"" if node_id is None else b',"node_id":%d' % node_id


def _draining_suffix(producer: RegisteredProducer) -> bytes:
    return b',"draining":true' if producer.is_draining else b""


def _render_lookup_producer(producer: RegisteredProducer) -> bytes:
    """A producer in /lookup."""
    return b"%b%b}" % (_render_prefix(producer), _draining_suffix(producer))


def _fields(producer: RegisteredProducer) -> dict[str, object]:
    info = producer.info
    return {
        "remote_address": producer.remote_address,
        "hostname": info.hostname,
        "broadcast_address": info.broadcast_address,
        "tcp_port": info.tcp_port,
        "http_port": info.http_port,
        "version": info.version,
        "topology_zone": info.topology_zone,
        "topology_region": info.topology_region,
    }


def _key(registration: Registration) -> str:
    return f"{registration.category}:{registration.topic}:{registration.channel}"


def _debug_entry(producer: RegisteredProducer, stone: Tombstone | None) -> dict[str, object]:
    entry = _fields(producer)
    entry["id"] = entry.pop("remote_address")
    entry["last_update"] = producer.seen_wall_ns
    entry["tombstoned"] = stone is not None
    entry["tombstoned_at"] = _NEVER_NS if stone is None else stone.at_wall_ns
    if producer.is_draining:
        entry["draining"] = True
    return dict(sorted(entry.items()))
