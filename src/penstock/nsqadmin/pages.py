"""The pages: topics, topic, channel, consumers, nodes, node, counter and lookup; search and charts.

Pages of one topic, channel or node query the nsqds. Pages with lists show the watcher's latest
state. The block `live` of a page is requested again every few seconds.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster, Node, NodeStats
from penstock.admin_api.models import TopicLogResponse
from penstock.net.http_server import HttpError
from penstock.nsqadmin.aggregate import node_topics
from penstock.nsqadmin.metrics_store import CLUSTER, Key, channel_key, node_key, topic_key
from penstock.nsqadmin.responses import Renderer, json_reply
from penstock.nsqadmin.targets import channel_stats, node_at, nodes_with_topic
from penstock.nsqadmin.views import (
    TopicRow,
    channel_rows,
    find,
    node_rows,
    topic_rows,
    totals,
)
from penstock.nsqadmin.watcher import ClusterState, Watcher

__all__ = ["Pages"]

# Longer lists are cut, because they are slow to render.
ROWS_MAX = 250

# Concurrent requests for the channels of inactive topics.
LOOKUPS_AT_ONCE = 16

_CHART_METRICS = {
    "rates": ("published", "finished"),
    "waiting": ("depth", "in_flight", "deferred"),
    "trouble": ("requeued", "timed_out"),
    "latency": ("latency_ms",),
}
_SORTS = {
    "name": lambda row: row.name,
    "rate": lambda row: (-row.metrics.published, row.name),
    "depth": lambda row: (-row.depth, row.name),
    "clients": lambda row: (-row.clients, row.name),
}


class Pages:
    """The endpoints of the pages."""

    def __init__(self, cluster: Cluster, watcher: Watcher, renderer: Renderer) -> None:
        self._cluster = cluster
        self._watcher = watcher
        self._renderer = renderer

    def routes(self) -> list[Route]:
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
        state = await self._watcher.state()
        metrics_store = self._watcher.metrics_store
        rows = topic_rows(state, metrics_store)
        sort = request.query_params.get("sort", "name")
        search_text = request.query_params.get("q", "").strip()
        matches = sorted(_matching(rows, search_text), key=_SORTS.get(sort, _SORTS["name"]))
        shows_all = request.query_params.get("all") == "true"
        return self._renderer.page(
            request,
            "topics.html",
            rows=matches if shows_all else matches[:ROWS_MAX],
            match_count=len(matches),
            shows_all=shows_all,
            sort=sort,
            search_text=search_text,
            totals=totals(rows, state),
            metrics=metrics_store.latest(CLUSTER),
            warning=state.warning,
        )

    async def _topic(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        query = self._cluster.new_query()
        nodes = await nodes_with_topic(query, topic)
        answers = await query.stats(nodes, topic)
        row = self._row_of(topic, nodes, answers)
        penstock_nodes, logs = await self._logs(answers, topic)
        return self._renderer.page(
            request,
            "topic.html",
            row=row,
            channels=channel_rows(row, self._watcher.metrics_store),
            node_stats=_of_topic(answers, topic),
            nodes=nodes,
            supports_history=bool(penstock_nodes),
            logs=logs,
            warning=query.warning,
        )

    async def _channel(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        query = self._cluster.new_query()
        nodes, answers, stats = await channel_stats(query, topic, channel)
        row = self._row_of(topic, nodes, answers).channels[channel]
        penstock_nodes, logs = await self._logs(answers, topic)
        return self._renderer.page(
            request,
            "channel.html",
            row=row,
            stats=stats,
            supports_history=bool(penstock_nodes),
            penstock_nodes=penstock_nodes,
            positions=_positions(stats["nodes"], logs),
            warning=query.warning,
        )

    async def _consumers(self, request: Request) -> Response:
        state = await self._watcher.state()
        search_text = request.query_params.get("q", "").strip()
        rows = topic_rows(state, self._watcher.metrics_store)
        channels = [
            channel
            for row in rows
            for channel in channel_rows(row, self._watcher.metrics_store)
            if all(
                word in f"{row.name} {channel.name}".lower() for word in search_text.lower().split()
            )
        ]
        channels.sort(key=lambda row: (-row.depth, row.topic, row.name))
        return self._renderer.page(
            request,
            "consumers.html",
            rows=channels[:ROWS_MAX],
            match_count=len(channels),
            search_text=search_text,
            warning=state.warning,
        )

    # Nodes.

    async def _nodes(self, request: Request) -> Response:
        state = await self._watcher.state()
        rows = node_rows(state, self._watcher.metrics_store)
        return self._renderer.page(
            request,
            "nodes.html",
            rows=rows,
            replication=await self._cluster.replication(
                row.node.address for row in rows if row.is_reachable
            ),
            lookupds=self._cluster.lookupds,
            warning=state.warning,
        )

    async def _node(self, request: Request) -> Response:
        address = request.path_params["node"]
        query = self._cluster.new_query()
        node = await node_at(query, address)
        answers = await query.available_stats([node])
        state = ClusterState(0.0, [], [node], answers)
        (row,) = node_rows(state, self._watcher.metrics_store)
        topics = [topic for answer in answers for topic in node_topics(answer, time.time_ns())]
        penstock_nodes = await self._cluster.penstock_nsqds([node.address])
        replication = await self._cluster.replication(penstock_nodes)
        return self._renderer.page(
            request,
            "node.html",
            row=row,
            topics=topics,
            replication=replication.get(node.address),
            supports_history=bool(penstock_nodes),
            warning=query.warning,
        )

    # The whole cluster.

    async def _counter(self, request: Request) -> Response:
        state = await self._watcher.state()
        rows = topic_rows(state, self._watcher.metrics_store)
        channels = [channel for row in rows for channel in row.channels.values()]
        return self._renderer.page(
            request,
            "counter.html",
            channels=sorted(channels, key=lambda row: (-row.messages, row.topic, row.name)),
            total=sum(channel.messages for channel in channels),
            metrics=self._watcher.metrics_store.latest(CLUSTER),
            warning=state.warning,
        )

    async def _lookup(self, request: Request) -> Response:
        state = await self._watcher.refresh()
        active = {topic for node in state.nodes for topic, _ in node.topics}
        inactive = [topic for topic in state.topics if topic not in active]
        shown = inactive[:ROWS_MAX] if self._cluster.lookupds else []
        query = self._cluster.new_query()
        semaphore = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def channels(topic: str) -> list[str]:
            async with semaphore:
                return await query.channels(topic)

        channel_names = await asyncio.gather(*map(channels, shown))
        return self._renderer.page(
            request,
            "lookup.html",
            lookupds=self._cluster.lookupds,
            inactive=list(zip(shown, channel_names, strict=True)),
            inactive_count=len(inactive),
            warning=state.warning or query.warning,
        )

    async def _find(self, request: Request) -> Response:
        search_text = request.query_params.get("q", "")
        results = find(await self._watcher.state(), search_text)
        return self._renderer.page(
            request, "search_results.html", results=results, search_text=search_text
        )

    async def _charts(self, request: Request) -> Response:
        args = request.query_params
        names = _CHART_METRICS.get(args.get("chart", ""))
        if names is None:
            raise HttpError(400, "INVALID_ARG_CHART")
        fine = args.get("span") != "hour"
        key = _chart_key(args.get("topic", ""), args.get("channel", ""), args.get("node", ""))
        series = self._watcher.metrics_store.series(key, names, fine=fine)
        return json_reply({name: [round(each, 3) for each in series[name]] for name in series})

    # Helpers.

    def _row_of(self, topic: str, nodes: list[Node], answers: list[NodeStats]) -> TopicRow:
        """The row of one topic, from fresh stats."""
        rows = topic_rows(ClusterState(0.0, [topic], nodes, answers), self._watcher.metrics_store)
        return next(row for row in rows if row.name == topic)

    async def _logs(
        self, answers: Sequence[NodeStats], topic: str
    ) -> tuple[list[str], dict[str, TopicLogResponse]]:
        """The nodes that run Penstock's nsqd, and the extent of the topic's log on each."""
        penstock_nodes = await self._cluster.penstock_nsqds(
            answer.node.address for answer in answers
        )
        return penstock_nodes, await self._cluster.topic_logs(penstock_nodes, topic)


def _matching(rows: list[TopicRow], search_text: str) -> list[TopicRow]:
    words = search_text.lower().split()
    return [row for row in rows if all(word in row.name.lower() for word in words)]


def _of_topic(answers: Sequence[NodeStats], topic: str) -> list[tuple[Node, Any]]:
    return [
        (answer.node, stats)
        for answer in answers
        for stats in answer.stats.topics or ()
        if stats.topic_name == topic
    ]


def _positions(nodes: Sequence[Any], logs: dict[str, TopicLogResponse]) -> dict[str, int]:
    """Position of a channel on each node: the end of the log minus the unfinished messages. If
    messages finish in order, this is the first unfinished message."""
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
