"""nsqd's HTTP API: publishing, stats, and the verbs of an operator.

Paths, arguments, answers, error codes and the order in which a request's faults are found are the
reference's. Go's /debug endpoints do not exist here. What an endpoint does is done when it returns,
but for publishing, which is answered when the message is stored.
"""

import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from penstock import NSQ_VERSION
from penstock.broker.broker import Broker
from penstock.broker.publishing import PublishBatch, Publisher
from penstock.broker.topic import Topic
from penstock.common.addresses import is_address
from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.common.errors import LimitReachedError, ProtocolError, StorageError
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
from penstock.nsqd.history import HistoryServices, TopicHistory
from penstock.nsqd.history_channels import ChannelHistory
from penstock.nsqd.history_peek import ChannelPeek
from penstock.nsqd.history_streams import HistoryStreams
from penstock.nsqd.http_args import (
    failing_with_500,
    required,
    topic_and_channel,
    topic_name,
    topic_of,
)
from penstock.nsqd.http_clients import ClientEndpoints
from penstock.nsqd.memory import GcPauses, memory_stats
from penstock.nsqd.metrics import MetricsSource, metrics
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.stats import Steps, collect, json_steps, result_of
from penstock.nsqd.stats_text import text_steps
from penstock.nsqd.tcp import Clients
from penstock.protocol.events import Limits
from penstock.protocol.mpub import parse_mpub_body

__all__ = ["HttpApi", "HttpServices"]

# History endpoints whose changes must be persisted before the answer.
_LASTING = {
    "/channel/cancel",
    "/channel/create",
    "/channel/mode",
    "/channel/seek",
    "/topic/retention",
}

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
# Maximum topics and channels for which /stats is computed in one turn of the loop.
_ROWS_AT_ONCE_MAX = 500
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(slots=True, kw_only=True)
class HttpServices:
    """What the endpoints work with."""

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
    started_at_ns: int
    # Where we listen: -1 for a unix socket. To be set when that is known.
    tcp_port: int = -1
    http_port: int = -1
    # How PUT /config changes whom we register with.
    register_with: Callable[[tuple[str, ...]], None]
    drain: Callable[[], None]


class HttpApi:
    """The endpoints, and the table of them."""

    def __init__(self, services: HttpServices) -> None:
        self._services = services
        self._broker = services.broker
        self._destinations = services.broker.destinations
        self._publisher = services.publisher

    def router(self) -> Router:
        """The table: what a body may be, and what answers."""
        return Router([*self._publish_routes(), *self._operator_routes(), *self._history_routes()])

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
        settled, lasting = self._when_publishes_are_stored, self._when_persisted
        return [
            Route("GET", "/ping", settled(self._ping), response_format=PLAIN_TEXT),
            Route("GET", "/info", self._info),
            Route("GET", "/stats", settled(self._stats)),
            Route("GET", "/metrics", settled(self._metrics), is_logged=False),
            Route("POST", "/topic/create", lasting(self._create_topic)),
            Route("POST", "/topic/delete", lasting(self._delete_topic)),
            Route("POST", "/topic/empty", lasting(self._empty_topic)),
            Route("POST", "/topic/pause", lasting(partial(self._pause_topic, paused=True))),
            Route("POST", "/topic/unpause", lasting(partial(self._pause_topic, paused=False))),
            Route("POST", "/channel/delete", lasting(self._delete_channel)),
            Route("POST", "/channel/empty", lasting(self._empty_channel)),
            Route("POST", "/channel/pause", lasting(partial(self._pause_channel, paused=True))),
            Route("POST", "/channel/unpause", lasting(partial(self._pause_channel, paused=False))),
            *ClientEndpoints(self._services.clients).routes(),
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
            node_id=services.options.node_id,
            clients=services.clients,
            streams=services.history,
            save_metadata_soon=services.save_metadata_soon,
        )
        settled = self._when_publishes_are_stored
        routes = [
            *TopicHistory(history).routes(),
            *ChannelHistory(history).routes(),
            *ChannelPeek(history).routes(),
        ]
        return [
            replace(
                route,
                handler=self._when_persisted(route.handler)
                if route.path in _LASTING
                else settled(route.handler),
            )
            for route in routes
        ]

    def _when_publishes_are_stored(self, handler: Handler) -> Handler:
        """An operator sees, and changes, topics with all that was published to them before."""

        def handle(request: Request) -> object:
            self._publisher.store()
            return handler(request)

        return handle

    def _when_persisted(self, handler: Handler) -> Handler:
        """Wraps a handler: the answer is sent after the change is fsynced, so that it survives a
        power loss."""
        handler = self._when_publishes_are_stored(handler)

        def handle(request: Request) -> object:
            answer = handler(request)
            if isinstance(answer, Response):
                return answer  # a refusal
            persisted = DeferredResponse()

            def done(failure: StorageError | None) -> None:
                if failure is not None:
                    self._services.log.error("failure in %s - %s", request.path, failure)
                    persisted.resolve(HttpError(500, "INTERNAL_ERROR"))
                else:
                    persisted.resolve(answer)

            self._services.persist(self._broker.topics.get(request.args.get("topic", "")), done)
            return persisted

        return handle

    # Looking.

    def _ping(self, _: Request) -> str:
        failure = self._broker.health()
        if failure is not None:
            raise HttpError(500, _not_ok(failure))
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
        }
        return info | {"draining": True} if self._broker.draining else info

    def _stats(self, request: Request) -> object:
        steps = self._stats_steps(request.args)
        topics = self._broker.topics.values()
        if len(topics) + sum(len(topic.channels) for topic in topics) <= _ROWS_AT_ONCE_MAX:
            return result_of(steps)
        return _in_turns(steps)

    def _stats_steps(self, args: dict[str, str]) -> Steps[object]:
        services = self._services
        failure = self._broker.health()
        stats = yield from collect(
            topics=self._broker.topics,
            clients=services.clients if _flag(args, "include_clients") else None,
            health="OK" if failure is None else _not_ok(failure),
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
        args = request.head.line.args or request.args  # the latter says what is wrong with them
        topic = self._topic_to_publish_to(args)
        # nsq compat: the topic has been made by the time the deferral is found to be wrong.
        if "defer" in args and (defer_ns := self._defer_ns(args["defer"])):
            return self._publish(topic, [body], defer_ns)
        return self._publish(topic, [body])

    def _mpub(self, request: Request) -> object:
        topic = self._topic_to_publish_to(request.args)
        if self._is_binary(request.args):
            bodies = self._binary_bodies(request.body)
        else:
            bodies = self._lines(request.body)
        return self._publish(topic, bodies) if bodies else OK

    def _publish(self, topic: Topic, bodies: list[bytes], defer_ns: int = 0) -> object:
        """OK when the messages are stored, or else an HttpError."""
        try:
            if defer_ns:
                batch = self._publisher.publish_deferred(topic, bodies, defer_ns)
            else:
                batch = self._publisher.publish(topic, bodies)
        except StorageError as failure:
            raise _not_stored(topic, failure, self._services.log) from failure
        if batch is None:
            return OK
        answer = _PublishAnswer()
        answer.topic, answer.log = topic, self._services.log
        batch.waiting.append(answer)
        return answer

    def _topic_to_publish_to(self, args: dict[str, str]) -> Topic:
        topic = self._destinations.get(args.get("topic", ""))
        if topic is not None:
            return topic
        try:
            return self._destinations[topic_name(args, "INVALID_TOPIC")]
        except StorageError as failure:
            self._services.log.repeating_error(
                failure.reason, "HTTP: failed to publish - %s", failure
            )
            raise HttpError(503, self._why_not_published(failure)) from failure

    def _why_not_published(self, failure: StorageError) -> str:
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
        if value not in _BOOLS:
            self._services.log.warning("deprecated value '%s' used for /mpub binary param", value)
        return _BOOLS.get(value, True)

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
        name = topic_name(request.args, "INVALID_TOPIC")
        with failing_with_500(self._services.log, request):
            self._broker.topic(name)

    def _delete_topic(self, request: Request) -> None:
        topic = topic_of(self._broker, required(request.args, "topic"))
        with failing_with_500(self._services.log, request):
            self._broker.delete_topic(topic.name)

    def _empty_topic(self, request: Request) -> None:
        topic = topic_of(self._broker, topic_name(request.args, "INVALID_TOPIC"))
        with failing_with_500(self._services.log, request):
            topic.empty()

    def _pause_topic(self, request: Request, *, paused: bool) -> None:
        topic = topic_of(self._broker, required(request.args, "topic"))
        with failing_with_500(self._services.log, request):
            topic.pause(paused)

    # Channels.

    def _delete_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(self._broker, request.args)
        with failing_with_500(self._services.log, request):
            self._broker.delete_channel(topic, channel.name)

    def _empty_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(self._broker, request.args)
        with failing_with_500(self._services.log, request):
            channel.empty(topic.owed_seq)

    def _pause_channel(self, request: Request, *, paused: bool) -> None:
        _, channel = topic_and_channel(self._broker, request.args)
        with failing_with_500(self._services.log, request):
            channel.pause(paused)

    # The node.

    def _drain(self, _: Request) -> None:
        self._services.drain()

    # Options.

    def _config(self, request: Request) -> object:
        try:
            return option_value(self._services.options, request.params["opt"])
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


class _PublishAnswer(DeferredResponse):
    """What a publish is told once its batch is stored. There is one for each: a constructor would
    double what they cost."""

    topic: Topic
    log: Logger

    def settled(self, batch: PublishBatch) -> None:
        """It is, or cannot be."""
        if batch.failure is None:
            self.resolve(OK)
        else:
            self.resolve(_not_stored(self.topic, batch.failure, self.log))


def _not_stored(topic: Topic, failure: StorageError, log: Logger) -> HttpError:
    log.repeating_error(failure.reason, "HTTP: failed to publish to %s - %s", topic.name, failure)
    return HttpError(503, "EXITING")  # nsq compat: the same, whatever the reason


async def _in_turns(steps: Steps[object]) -> object:
    """Runs one step in each turn of the loop, so that other clients are served in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


def _flag(args: dict[str, str], name: str) -> bool:
    """On, unless it is clearly turned off."""
    return _BOOLS.get(args.get(name, ""), True)


def _not_ok(failure: str) -> str:
    return f"NOK - {failure}"
