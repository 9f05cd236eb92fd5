"""nsqd's HTTP API: publishing, stats, and operations on topics, channels, clients and options.

Paths, arguments, responses, error codes and the order of checks are NSQ's; Go's /debug
endpoints do not exist here. A publish is acknowledged when the message is stored, a change when it
is fsynced.
"""

import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from penstock import NSQ_VERSION
from penstock.broker.broker import Broker
from penstock.broker.publishing import Publisher, TurnBatch
from penstock.broker.topic import Topic
from penstock.common.addresses import is_address
from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.common.errors import LimitReachedError, NotInSyncError, ProtocolError, StorageError
from penstock.common.go_json import decode_json
from penstock.common.logs import Logger, LogLevel
from penstock.common.options import option_value
from penstock.net.http_server import (
    OK,
    PLAIN_TEXT,
    DeferredResponse,
    Handler,
    HttpError,
    Request,
    Response,
    Route,
    Router,
    StreamingResponse,
    json_response,
)
from penstock.net.prometheus import exposition
from penstock.nsqd.history import ChannelHistory, ChannelPeek, HistoryServices, TopicHistory
from penstock.nsqd.history_streams import HistoryStreams
from penstock.nsqd.http_args import (
    BOOLEANS,
    count_arg,
    find_topic,
    find_topic_and_channel,
    required_arg,
    storage_errors_as_http,
    topic_name_arg,
)
from penstock.nsqd.log_catalog import LogCatalog
from penstock.nsqd.metrics import MetricsSource, metrics
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.process_metrics import GcPauses, memory_stats
from penstock.nsqd.stats import Steps, collect, json_steps, run_steps
from penstock.nsqd.stats_text import text_steps
from penstock.nsqd.tcp import Clients
from penstock.protocol.events import Limits
from penstock.protocol.mpub import parse_mpub_body
from penstock.replication.status import ReplicationStatus

__all__ = ["NsqdHttpApi", "NsqdHttpServices"]

# History endpoints whose changes are persisted before the response.
_PERSISTED_PATHS = {
    "/channel/cancel",
    "/channel/create",
    "/channel/mode",
    "/channel/seek",
    "/topic/retention",
}

# Maximum topics and channels for which /stats is computed in one turn of the loop.
_ROWS_AT_ONCE_MAX = 500
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(slots=True, kw_only=True)
class NsqdHttpServices:
    """Dependencies of the endpoints."""

    broker: Broker
    clock: Clock
    log: Logger
    limits: Limits
    options: NsqdOptions  # replaced by PUT /config
    publisher: Publisher
    clients: Clients
    gc_pauses: GcPauses
    metrics: MetricsSource
    # Calls back once nsqd.dat and the cursors of a topic's channels are fsynced.
    persist: Callable[[Topic | None, Callable[[StorageError | None], None]], None]
    save_metadata_soon: Callable[[], None]
    history: HistoryStreams
    catalog: LogCatalog
    started_at_ns: int
    # Ports of the listeners, -1 for a unix socket; set after listening.
    tcp_port: int = -1
    http_port: int = -1
    # Called by PUT /config/nsqlookupd_tcp_addresses.
    register_with: Callable[[tuple[str, ...]], None]
    drain: Callable[[], None]
    # What /replication shows; None without replication.
    replication_status: Callable[[], ReplicationStatus] | None = None


class NsqdHttpApi:
    """The endpoints and their routes."""

    def __init__(self, services: NsqdHttpServices) -> None:
        self._services = services
        self._broker = services.broker
        self._topic_cache = services.broker.topic_cache
        self._publisher = services.publisher

    def router(self) -> Router:
        """The routes, with the maximum body size of each."""
        routes = [*self._publish_routes(), *self._operator_routes(), *self._history_routes()]
        if (status := self._services.replication_status) is not None:
            routes += [
                Route("GET", "/replication", lambda _: msgspec.to_builtins(status())),
                Route("GET", "/ready", lambda _: "OK", response_format=PLAIN_TEXT),
            ]
        return Router(routes)

    def _publish_routes(self) -> list[Route]:
        limits = self._services.limits
        return [
            Route(
                "POST",
                "/pub",
                self._pub,
                body_bytes_max=limits.max_msg_size,
                too_large_code="MSG_TOO_BIG",
                is_logged=False,
            ),
            Route(
                "POST",
                "/mpub",
                self._mpub,
                body_bytes_max=limits.max_body_size,
                too_large_code="BODY_TOO_BIG",
                is_logged=False,
            ),
        ]

    def _operator_routes(self) -> list[Route]:
        stored, persisted = self._after_publishes, self._persisted
        return [
            Route("GET", "/ping", stored(self._ping), response_format=PLAIN_TEXT),
            Route("GET", "/info", self._info),
            Route("GET", "/stats", stored(self._stats)),
            Route("GET", "/metrics", stored(self._metrics), is_logged=False),
            Route("POST", "/topic/create", persisted(self._create_topic)),
            Route("POST", "/topic/delete", persisted(self._delete_topic)),
            Route("POST", "/topic/empty", persisted(self._empty_topic)),
            Route("POST", "/topic/pause", persisted(partial(self._pause_topic, paused=True))),
            Route("POST", "/topic/unpause", persisted(partial(self._pause_topic, paused=False))),
            Route("POST", "/channel/delete", persisted(self._delete_channel)),
            Route("POST", "/channel/empty", persisted(self._empty_channel)),
            Route("POST", "/channel/pause", persisted(partial(self._pause_channel, paused=True))),
            Route(
                "POST", "/channel/unpause", persisted(partial(self._pause_channel, paused=False))
            ),
            Route("POST", "/client/close", self._close_client),
            Route("POST", "/drain", self._drain),
            Route("GET", "/config/:opt", self._config),
            Route(
                "PUT",
                "/config/:opt",
                self._set_config,
                body_bytes_max=self._services.limits.max_msg_size,
                too_large_code="INVALID_VALUE",
            ),
        ]

    def _history_routes(self) -> list[Route]:
        services = self._services
        history = HistoryServices(
            broker=services.broker,
            clock=services.clock,
            log=services.log,
            clients=services.clients,
            streams=services.history,
            catalog=services.catalog,
            save_metadata_soon=services.save_metadata_soon,
        )
        stored = self._after_publishes
        routes = [
            *TopicHistory(history).routes(),
            *ChannelHistory(history).routes(),
            *ChannelPeek(history).routes(),
        ]
        return [
            replace(
                route,
                handler=self._persisted(route.handler)
                if route.path in _PERSISTED_PATHS
                else stored(route.handler),
            )
            for route in routes
        ]

    def _after_publishes(self, handler: Handler) -> Handler:
        """Wraps a handler: publishes of the same turn are stored first, so that it sees them."""

        def handle(request: Request) -> object:
            self._publisher.store()
            return handler(request)

        return handle

    def _persisted(self, handler: Handler) -> Handler:
        """Wraps a handler: the response is sent after the change is fsynced, so that the change
        survives a power loss."""
        handler = self._after_publishes(handler)

        def handle(request: Request) -> object:
            result = handler(request)
            if isinstance(result, Response):
                return result  # an error
            response = DeferredResponse()

            def done(failure: StorageError | None) -> None:
                if failure is not None:
                    self._services.log.error("failure in %s - %s", request.path, failure)
                    response.resolve(HttpError(500, "INTERNAL_ERROR"))
                else:
                    response.resolve(result)

            self._services.persist(self._broker.topics.get(request.args.get("topic", "")), done)
            return response

        return handle

    # Reading.

    def _ping(self, _: Request) -> str:
        failure = self._broker.health()
        if failure is not None:
            raise HttpError(500, _unhealthy_text(failure))
        return "OK"

    def _info(self, _: Request) -> object:
        services, options = self._services, self._services.options
        info = {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": os.uname().nodename,
            "http_port": services.http_port,
            "tcp_port": services.tcp_port,
            "start_time": services.started_at_ns // SECOND_NS,
            "max_heartbeat_interval": options.max_heartbeat_interval_ns,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
            "max_deflate_level": options.max_deflate_level,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
            "node_id": self._broker.node_id,
        }
        return info | {"draining": True} if self._broker.draining else info

    def _stats(self, request: Request) -> object:
        steps = self._stats_steps(request.args)
        topics = self._broker.topics.values()
        if len(topics) + sum(len(topic.channels) for topic in topics) <= _ROWS_AT_ONCE_MAX:
            return run_steps(steps)
        return _run_in_turns(steps)

    def _stats_steps(self, args: dict[str, str]) -> Steps[object]:
        services = self._services
        failure = self._broker.health()
        stats = yield from collect(
            topics=self._broker.topics,
            clients=services.clients if _flag(args, "include_clients") else None,
            health="OK" if failure is None else _unhealthy_text(failure),
            started_at_ns=services.started_at_ns,
            memory=memory_stats(services.gc_pauses) if _flag(args, "include_mem") else None,
            quantiles=services.options.e2e_processing_latency_percentiles,
            topic=args.get("topic", ""),
            channel=args.get("channel", ""),
        )
        if self._broker.draining:
            stats["draining"] = True
        if args.get("format") == "json":
            return json_response(200, (yield from json_steps(stats)))
        wall_ns = services.clock.wall_ns()
        return (yield from text_steps(stats, started_at_ns=services.started_at_ns, wall_ns=wall_ns))

    def _metrics(self, _: Request) -> StreamingResponse:
        return exposition(metrics(self._services.metrics))

    # Publishing.

    def _pub(self, request: Request) -> object:
        body = request.body
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        args = (
            request.head.line.args or request.args
        )  # The property raises if they are invalid; this saves its call.
        topic = self._destination_topic(args)
        # nsq compat: the topic is created even if the deferral is invalid.
        if "defer" in args and (defer_ns := self._defer_ns(args["defer"])):
            return self._publish(topic, [body], defer_ns)
        return self._publish(topic, [body])

    def _mpub(self, request: Request) -> object:
        topic = self._destination_topic(request.args)
        if self._is_binary(request.args):
            bodies = self._binary_bodies(request.body)
        else:
            bodies = self._lines(request.body)
        return self._publish(topic, bodies) if bodies else OK

    def _publish(self, topic: Topic, bodies: list[bytes], defer_ns: int = 0) -> object:
        """Publishes; the response is OK after the messages are stored."""
        try:
            if defer_ns:
                batch = self._publisher.publish_deferred(topic, bodies, defer_ns)
            else:
                batch = self._publisher.publish(topic, bodies)
        except StorageError as failure:
            raise _not_stored(topic, failure, self._services.log) from failure
        if batch is None:
            return OK
        response = _PublishResponse()
        response.topic, response.log = topic, self._services.log
        batch.waiters.append(response)
        return response

    def _destination_topic(self, args: dict[str, str]) -> Topic:
        topic = self._topic_cache.get(args.get("topic", ""))
        if topic is not None:
            return topic
        try:
            return self._topic_cache[topic_name_arg(args, "INVALID_TOPIC")]
        except StorageError as failure:
            self._services.log.repeating_error(
                failure.reason, "HTTP: failed to publish - %s", failure
            )
            raise HttpError(503, self._publish_error_code(failure)) from failure

    def _publish_error_code(self, failure: StorageError) -> str:
        if isinstance(failure, LimitReachedError):
            return "LIMIT_REACHED"
        return "DRAINING" if self._broker.draining else "EXITING"

    def _defer_ns(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise HttpError(400, "INVALID_DEFER")
        defer_ms = int(text)
        if not 0 <= defer_ms <= self._services.limits.max_defer_timeout_ms:
            raise HttpError(400, "INVALID_DEFER")
        return defer_ms * MILLISECOND_NS

    def _is_binary(self, args: dict[str, str]) -> bool:
        if "binary" not in args:
            return False
        value = args["binary"]
        if value not in BOOLEANS:
            self._services.log.warning("deprecated value '%s' used for /mpub binary param", value)
        return BOOLEANS.get(value, True)

    def _binary_bodies(self, body: bytes) -> list[bytes]:
        try:
            return parse_mpub_body(body, self._services.limits)
        except ProtocolError as error:
            raise HttpError(413, error.code.removeprefix("E_")) from error

    def _lines(self, body: bytes) -> list[bytes]:
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._services.limits.max_msg_size for line in bodies):
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    # Topics.

    def _create_topic(self, request: Request) -> None:
        name = topic_name_arg(request.args, "INVALID_TOPIC")
        with storage_errors_as_http(self._services.log, request):
            self._broker.topic(name)

    def _delete_topic(self, request: Request) -> None:
        topic = find_topic(self._broker, required_arg(request.args, "topic"))
        with storage_errors_as_http(self._services.log, request):
            self._broker.delete_topic(topic.name)

    def _empty_topic(self, request: Request) -> None:
        topic = find_topic(self._broker, topic_name_arg(request.args, "INVALID_TOPIC"))
        with storage_errors_as_http(self._services.log, request):
            topic.empty()

    def _pause_topic(self, request: Request, *, paused: bool) -> None:
        topic = find_topic(self._broker, required_arg(request.args, "topic"))
        with storage_errors_as_http(self._services.log, request):
            topic.pause(paused)

    # Channels.

    def _delete_channel(self, request: Request) -> None:
        topic, channel = find_topic_and_channel(self._broker, request.args)
        with storage_errors_as_http(self._services.log, request):
            self._broker.delete_channel(topic, channel.name)

    def _empty_channel(self, request: Request) -> None:
        topic, channel = find_topic_and_channel(self._broker, request.args)
        with storage_errors_as_http(self._services.log, request):
            channel.empty(topic.owed_seq)

    def _pause_channel(self, request: Request, *, paused: bool) -> None:
        _, channel = find_topic_and_channel(self._broker, request.args)
        with storage_errors_as_http(self._services.log, request):
            channel.pause(paused)

    # Clients and the node.

    def _close_client(self, request: Request) -> None:
        """Not in NSQ. A client is identified as in /stats: by its address and, because addresses
        are reused, by the time when it connected."""
        address = required_arg(request.args, "remote_address")
        since = count_arg(request.args, "connect_ts")
        matches = [
            client
            for client in self._services.clients
            if client.remote_address == address
            and since in (None, client.connected_at_ns // SECOND_NS)
        ]
        if not matches:
            raise HttpError(404, "CLIENT_NOT_FOUND")
        if len(matches) > 1:  # clients of a unix socket have no addresses
            raise HttpError(409, "CLIENT_NOT_UNIQUE")
        matches[0].kick()

    def _drain(self, _: Request) -> None:
        self._services.drain()

    # Options.

    def _config(self, request: Request) -> object:
        options = replace(self._services.options, node_id=self._broker.node_id)
        try:
            return option_value(options, request.params["opt"])
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None

    def _set_config(self, request: Request) -> object:
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        match request.params["opt"]:
            case "log_level":
                self._set_log_level(request.body)
            case "nsqlookupd_tcp_addresses":
                self._set_lookupd_addresses(request.body)
            case _:
                raise HttpError(400, "INVALID_OPTION")
        return self._config(request)

    def _set_log_level(self, body: bytes) -> None:
        services = self._services
        try:
            services.log.level = LogLevel.parse(body.decode())
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        services.options = replace(services.options, log_level=services.log.level)

    def _set_lookupd_addresses(self, body: bytes) -> None:
        services = self._services
        try:
            addresses = tuple(decode_json(body, list[str]))
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if not all(map(is_address, addresses)):
            raise HttpError(400, "INVALID_VALUE")
        services.register_with(addresses)
        services.options = replace(services.options, lookupd_tcp_addresses=addresses)


class _PublishResponse(DeferredResponse):
    """The response to a publish, resolved when its batch is stored. Without a constructor, which
    would double its cost."""

    topic: Topic
    log: Logger

    def on_batch_done(self, batch: TurnBatch) -> None:
        """Called by the publisher when the batch is stored or has failed."""
        if batch.failure is None:
            self.resolve(OK)
        else:
            self.resolve(_not_stored(self.topic, batch.failure, self.log))


def _not_stored(topic: Topic, failure: StorageError, log: Logger) -> HttpError:
    log.repeating_error(failure.reason, "HTTP: failed to publish to %s - %s", topic.name, failure)
    if isinstance(failure, NotInSyncError):
        return HttpError(503, "NOT_IN_SYNC")
    return HttpError(503, "EXITING")  # nsq compat: the same for all other reasons


async def _run_in_turns(steps: Steps[object]) -> object:
    """Runs one step per turn of the loop, so that other clients are served in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


def _flag(args: dict[str, str], name: str) -> bool:
    """A boolean argument that is true by default, also if its value is not a boolean."""
    return BOOLEANS.get(args.get(name, ""), True)


def _unhealthy_text(failure: str) -> str:
    return f"NOK - {failure}"
