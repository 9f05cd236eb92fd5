"""The HTTP API of NSQ's nsqadmin: same paths, request bodies, responses and error codes.

If some daemons fail, the response contains a warning; if all fail, the status is 502. Unknown names
get 404, where NSQ's nsqadmin responds with 500 or 502.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster, ClusterQuery
from penstock.common import names
from penstock.common.go_json import decode_json
from penstock.net.http_server import HttpError
from penstock.nsqadmin.access import Admins
from penstock.nsqadmin.actions import ClusterCommands
from penstock.nsqadmin.aggregate import (
    aggregate_channels,
    aggregate_topic,
    node_json,
    node_topics,
)
from penstock.nsqadmin.notifications import ChangeEvent, Notifier
from penstock.nsqadmin.responses import json_reply
from penstock.nsqadmin.targets import channel_stats, node_at, nodes_with_topic

__all__ = ["ACTIONS", "BODY_BYTES_MAX", "Api"]

ACTIONS = ("pause", "unpause", "empty")

# A body contains only names of a topic and a channel, or an action.
BODY_BYTES_MAX = 64 * 1024

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


class _TargetBody(msgspec.Struct):
    topic: str = ""
    channel: str = ""


class _ActionBody(msgspec.Struct):
    action: str = ""


class Api:
    """The endpoints below /api."""

    def __init__(self, cluster: Cluster, admins: Admins, notifier: Notifier) -> None:
        self._cluster = cluster
        self._admins = admins
        self._notifier = notifier
        self._commands = ClusterCommands(cluster)

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Endpoint]] = [
            ("GET", "/api/topics", self._topics),
            ("POST", "/api/topics", self._for_admins(self._create)),
            ("GET", "/api/topics/{topic}", self._topic),
            ("POST", "/api/topics/{topic}", self._for_admins(self._apply)),
            ("DELETE", "/api/topics/{topic}", self._for_admins(self._delete)),
            ("GET", "/api/topics/{topic}/{channel}", self._channel),
            ("POST", "/api/topics/{topic}/{channel}", self._for_admins(self._apply)),
            ("DELETE", "/api/topics/{topic}/{channel}", self._for_admins(self._delete)),
            ("GET", "/api/nodes", self._nodes),
            ("GET", "/api/nodes/{node:path}", self._node),
            ("DELETE", "/api/nodes/{node:path}", self._for_admins(self._tombstone)),
            ("GET", "/api/counter", self._counter),
        ]
        return [Route(path, endpoint, methods=[method]) for method, path, endpoint in table]

    # Reading.

    async def _topics(self, request: Request) -> Response:
        query = self._cluster.new_query()
        topics = await query.topics()
        if request.query_params.get("inactive") != "true":
            return json_reply({"topics": topics or None, "message": query.warning})
        inactive = await self._inactive(query, topics)
        return json_reply({"topics": inactive, "message": query.warning})

    async def _inactive(
        self, query: ClusterQuery, topics: list[str]
    ) -> dict[str, list[str] | None]:
        """Topics that no nsqd has, with their channels as nsqlookupds know them."""
        if not self._cluster.lookupds:
            return {}
        active = {topic for node in await query.nodes() for topic, _ in node.topics}
        return {
            topic: await query.channels(topic) or None for topic in topics if topic not in active
        }

    async def _topic(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        query = self._cluster.new_query()
        nodes = await nodes_with_topic(query, topic)
        answers = await query.stats(nodes, topic)
        stats = aggregate_topic(topic, answers, time.time_ns())
        return json_reply({**stats, "message": query.warning})

    async def _channel(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        query = self._cluster.new_query()
        _, _, stats = await channel_stats(query, topic, channel)
        return json_reply({**stats, "message": query.warning})

    async def _nodes(self, _: Request) -> Response:
        query = self._cluster.new_query()
        nodes = [node_json(node) for node in await query.nodes()]
        return json_reply({"nodes": nodes or None, "message": query.warning})

    async def _node(self, request: Request) -> Response:
        address = request.path_params["node"]
        query = self._cluster.new_query()
        node = await node_at(query, address)
        (answer,) = await query.stats([node], clients=True)
        topics = answer.stats.topics or ()
        return json_reply(
            {
                "node": address,
                "topics": node_topics(answer, time.time_ns()) or None,
                "total_messages": sum(topic.message_count for topic in topics),
                "total_clients": sum(
                    len(channel.clients or ()) for topic in topics for channel in topic.channels
                ),
                "message": query.warning,
            }
        )

    async def _counter(self, _: Request) -> Response:
        query = self._cluster.new_query()
        answers = await query.stats(await query.nodes())
        counts = {
            f"{topic}:{channel}:{node['node']}": {
                "node": node["node"],
                "topic_name": topic,
                "channel_name": channel,
                "message_count": node["message_count"],
            }
            for (topic, channel), total in aggregate_channels(answers, time.time_ns()).items()
            for node in total["nodes"]
        }
        return json_reply({"stats": dict(sorted(counts.items())), "message": query.warning})

    # Changes.

    def _for_admins(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            self._admins.check(request)
            return await endpoint(request)

        return checked

    async def _create(self, request: Request) -> Response:
        body = await _decode_body(request, _TargetBody)
        if not names.is_valid(body.topic):
            raise HttpError(400, "INVALID_TOPIC")
        if body.channel and not names.is_valid(body.channel):
            raise HttpError(400, "INVALID_CHANNEL")
        query = await self._commands.create(body.topic, body.channel)
        self._notify(request, "create_topic", body.topic)
        if body.channel:
            self._notify(request, "create_channel", body.topic, body.channel)
        return _reply(query)

    async def _apply(self, request: Request) -> Response:
        topic, channel = _named(request)
        action = (await _decode_body(request, _ActionBody)).action
        if action not in ACTIONS:
            raise HttpError(400, "INVALID_ACTION")
        query = await self._commands.apply(action, topic, channel)
        self._notify(request, f"{action}_{'channel' if channel else 'topic'}", topic, channel)
        return _reply(query)

    async def _delete(self, request: Request) -> Response:
        topic, channel = _named(request)
        query = await self._commands.delete(topic, channel)
        self._notify(request, f"delete_{'channel' if channel else 'topic'}", topic, channel)
        return _reply(query)

    async def _tombstone(self, request: Request) -> Response:
        address = request.path_params["node"]
        body = await _decode_body(request, _TargetBody, error_code="INVALID_BODY")
        if not names.is_valid(body.topic):
            raise HttpError(400, "INVALID_TOPIC")
        query = await self._commands.tombstone(body.topic, address)
        self._notify(request, "tombstone_topic_producer", body.topic, node=address)
        return _reply(query)

    def _notify(
        self, request: Request, verb: str, topic: str, channel: str = "", *, node: str = ""
    ) -> None:
        event = ChangeEvent(verb=verb, topic=topic, channel=channel, node=node)
        self._notifier.notify(event, request)


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["topic"], request.path_params.get("channel", "")


def _reply(query: ClusterQuery) -> Response:
    return json_reply({"message": query.warning})


async def _decode_body(request: Request, type: type[T], *, error_code: str = "") -> T:
    """Decode a JSON body. The Content-Type is ignored, because NSQ's clients may not send one."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise HttpError(413, "BODY_TOO_BIG")
    try:
        return decode_json(bytes(body), type)
    except ValueError as error:
        raise HttpError(400, error_code or str(error)) from None
