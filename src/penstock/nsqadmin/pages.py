"""The pages: topics, a topic, a channel, nodes, a node, the counter, the lookup; and what moves on
them.

A page that shows one topic or channel asks for it; a page that lists all shows what the watcher saw
a moment ago. The part of a page that lives asks for itself again every few seconds.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster, ClusterQuery, Node, NodeStats
from penstock.admin_api.models import TopicLogResponse
from penstock.net.http_server import HttpError
from penstock.nsqadmin.aggregate import aggregate_channel, node_topics
from penstock.nsqadmin.json_responses import json_reply
from penstock.nsqadmin.metrics_store import CLUSTER, Key, channel_key, node_key, topic_key
from penstock.nsqadmin.penstock_api import PenstockApi
from penstock.nsqadmin.rendering import Renderer
from penstock.nsqadmin.views import (
    TopicRow,
    channel_rows,
    find,
    node_rows,
    topic_rows,
    totals,
)
from penstock.nsqadmin.watcher import Snapshot, Watcher

__all__ = ["Pages"]

# Beyond that a list is slow to draw, and nobody reads it: one filters it, or asks for all.
ROWS_MAX = 250

# nsqlookupds are asked about one topic after the other, but not all that slowly.
QUESTIONS_AT_ONCE = 16

_CHART_FIGURES = {
    "rates": ("published", "finished"),
    "waiting": ("depth", "in_flight", "deferred"),
    "trouble": ("requeued", "timed_out"),
    "latency": ("latency_ms",),
}
_SORTS = {
    "name": lambda row: row.name,
    "rate": lambda row: (-row.figures.published, row.name),
    "depth": lambda row: (-row.depth, row.name),
    "clients": lambda row: (-row.clients, row.name),
}


class Pages:
    """The endpoints, and the table of them."""

    def __init__(
        self, cluster: Cluster, watcher: Watcher, penstock_api: PenstockApi, renderer: Renderer
    ) -> None:
        self._cluster = cluster
        self._watcher = watcher
        self._penstock_api = penstock_api
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """The table."""
        return [
            Route("/", self._topics),
            Route("/topics", self._topics),
            Route("/topics/{topic}", self._topic),
            Route("/topics/{topic}/{channel}", self._channel),
            Route("/consumers", self._consumers),
            Route("/nodes", self._nodes),
            Route("/nodes/{node:path}", self._node),
            Route("/counter", self._counter),
            Route("/lookup", self._lookup),
            Route("/find", self._find),
            Route("/charts", self._charts),
        ]

    # Topics and channels.

    async def _topics(self, request: Request) -> Response:
        snapshot = await self._watcher.snapshot()
        chronicle = self._watcher.chronicle
        rows = topic_rows(snapshot, chronicle)
        sort = request.query_params.get("sort", "name")
        text = request.query_params.get("q", "").strip()
        found = sorted(_matching(rows, text), key=_SORTS.get(sort, _SORTS["name"]))
        shows_all = request.query_params.get("all") == "true"
        return self._renderer.page(
            request,
            "topics.html",
            rows=found if shows_all else found[:ROWS_MAX],
            found_count=len(found),
            shows_all=shows_all,
            sort=sort,
            text=text,
            totals=totals(rows, snapshot),
            figures=chronicle.latest(CLUSTER),
            warning=snapshot.warning,
        )

    async def _topic(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        query = self._cluster.new_query()
        nodes = await _nodes_of(query, topic)
        answers = await query.stats(nodes, topic)
        row = self._row_of(topic, nodes, answers)
        able, logs = await self._logs(answers, topic)
        return self._renderer.page(
            request,
            "topic.html",
            row=row,
            channels=channel_rows(row, self._watcher.chronicle),
            answers=_of_topic(answers, topic),
            nodes=nodes,
            able=able,
            logs=logs,
            warning=query.warning,
        )

    async def _channel(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        query = self._cluster.new_query()
        nodes = await _nodes_of(query, topic)
        answers = await query.stats(nodes, topic, channel, clients=True)
        found = aggregate_channel(topic, channel, answers, time.time_ns())
        if found is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        row = self._row_of(topic, nodes, answers).channels[channel]
        able, logs = await self._logs(answers, topic)
        return self._renderer.page(
            request,
            "channel.html",
            row=row,
            found=found,
            able=able,
            places=_places(found["nodes"], logs),
            warning=query.warning,
        )

    async def _consumers(self, request: Request) -> Response:
        snapshot = await self._watcher.snapshot()
        text = request.query_params.get("q", "").strip()
        rows = topic_rows(snapshot, self._watcher.chronicle)
        channels = [
            channel
            for row in rows
            for channel in channel_rows(row, self._watcher.chronicle)
            if all(word in f"{row.name} {channel.name}".lower() for word in text.lower().split())
        ]
        channels.sort(key=lambda row: (-row.depth, row.topic, row.name))
        return self._renderer.page(
            request,
            "consumers.html",
            rows=channels[:ROWS_MAX],
            found_count=len(channels),
            text=text,
            warning=snapshot.warning,
        )

    # Nodes.

    async def _nodes(self, request: Request) -> Response:
        snapshot = await self._watcher.snapshot()
        rows = node_rows(snapshot, self._watcher.chronicle)
        return self._renderer.page(
            request,
            "nodes.html",
            rows=rows,
            lookupds=self._cluster.lookupds,
            warning=snapshot.warning,
        )

    async def _node(self, request: Request) -> Response:
        address = request.path_params["node"]
        query = self._cluster.new_query()
        node = await query.node(address)
        if node is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        answers = await query.available_stats([node])
        snapshot = Snapshot(0.0, [], [node], answers)
        (row,) = node_rows(snapshot, self._watcher.chronicle)
        topics = [topic for answer in answers for topic in node_topics(answer, time.time_ns())]
        able = await self._penstock_api.supporting([node.address])
        return self._renderer.page(
            request, "node.html", row=row, topics=topics, able=able, warning=query.warning
        )

    # The whole.

    async def _counter(self, request: Request) -> Response:
        snapshot = await self._watcher.snapshot()
        rows = topic_rows(snapshot, self._watcher.chronicle)
        channels = [channel for row in rows for channel in row.channels.values()]
        return self._renderer.page(
            request,
            "counter.html",
            channels=sorted(channels, key=lambda row: (-row.messages, row.topic, row.name)),
            total=sum(channel.messages for channel in channels),
            figures=self._watcher.chronicle.latest(CLUSTER),
            warning=snapshot.warning,
        )

    async def _lookup(self, request: Request) -> Response:
        snapshot = await self._watcher.refresh()
        active = {topic for node in snapshot.nodes for topic, _ in node.topics}
        inactive = [topic for topic in snapshot.topics if topic not in active]
        shown = inactive[:ROWS_MAX] if self._cluster.lookupds else []
        query = self._cluster.new_query()
        one_of_few = asyncio.Semaphore(QUESTIONS_AT_ONCE)

        async def channels(topic: str) -> list[str]:
            async with one_of_few:
                return await query.channels(topic)

        found = await asyncio.gather(*map(channels, shown))
        return self._renderer.page(
            request,
            "lookup.html",
            lookupds=self._cluster.lookupds,
            inactive=list(zip(shown, found, strict=True)),
            inactive_count=len(inactive),
            warning=snapshot.warning or query.warning,
        )

    async def _find(self, request: Request) -> Response:
        text = request.query_params.get("q", "")
        found = find(await self._watcher.snapshot(), text)
        return self._renderer.page(request, "found.html", found=found, text=text)

    async def _charts(self, request: Request) -> Response:
        args = request.query_params
        names = _CHART_FIGURES.get(args.get("chart", ""))
        if names is None:
            raise HttpError(400, "INVALID_ARG_CHART")
        fine = args.get("span") != "hour"
        key = _chart_key(args.get("topic", ""), args.get("channel", ""), args.get("node", ""))
        series = self._watcher.chronicle.series(key, names, fine=fine)
        return json_reply({name: [round(each, 3) for each in series[name]] for name in series})

    # Within.

    def _row_of(self, topic: str, nodes: list[Node], answers: list[NodeStats]) -> TopicRow:
        """The row of one topic, as it was asked for."""
        rows = topic_rows(Snapshot(0.0, [topic], nodes, answers), self._watcher.chronicle)
        return next(row for row in rows if row.name == topic)

    async def _logs(
        self, answers: Sequence[NodeStats], topic: str
    ) -> tuple[list[str], dict[str, TopicLogResponse]]:
        """The nodes that have our penstock_api, and how far the topic's log reaches on each."""
        able = await self._penstock_api.supporting(answer.node.address for answer in answers)
        return able, await self._penstock_api.logs_of(able, topic)


def _matching(rows: list[TopicRow], text: str) -> list[TopicRow]:
    words = text.lower().split()
    return [row for row in rows if all(word in row.name.lower() for word in words)]


async def _nodes_of(query: ClusterQuery, topic: str) -> list[Node]:
    nodes = await query.nodes_with_topic(topic)
    if nodes is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return nodes


def _of_topic(answers: Sequence[NodeStats], topic: str) -> list[tuple[Node, Any]]:
    return [
        (answer.node, stats)
        for answer in answers
        for stats in answer.stats.topics or ()
        if stats.topic_name == topic
    ]


def _places(nodes: Sequence[Any], logs: dict[str, TopicLogResponse]) -> dict[str, int]:
    """How far a channel has got on each node: the number of the first message that is not done, if
    all before it are."""
    return {
        node["node"]: logs[node["node"]].next_seq
        - (node["depth"] + node["in_flight_count"] + node["deferred_count"])
        for node in nodes
        if node["node"] in logs
    }


def _chart_key(topic: str, channel: str, node: str) -> Key:
    if channel:
        return channel_key(topic, channel)
    if topic:
        return topic_key(topic)
    return node_key(node) if node else CLUSTER
