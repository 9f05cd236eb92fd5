"""Pages that list messages: the history of a topic, and the messages in a channel.

Both show one node at a time, because each node has its own log. They consume nothing.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster
from penstock.admin_api.models import StoredMessage, TopicLogResponse
from penstock.admin_api.nsqd_api import MESSAGE_STATES
from penstock.admin_api.seeking import (
    absolute_position,
    format_position,
    is_seq,
    split_position,
)
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.formatting import FormattedBody, format_body
from penstock.nsqadmin.responses import Renderer
from penstock.nsqadmin.targets import nodes_with_topic

__all__ = ["MessagePages"]

PAGE_MESSAGES = 50


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message with its formatted body."""

    message: StoredMessage
    body: FormattedBody


@dataclass(frozen=True, slots=True)
class _HistoryPage:
    """A page of the history, newest message first, with the positions of adjacent pages."""

    rows: list[MessageRow]
    older: str | None = None
    newer: str | None = None
    searched_count: int = 0


class MessagePages:
    """The endpoints of the message pages."""

    def __init__(self, cluster: Cluster, renderer: Renderer) -> None:
        self._cluster = cluster
        self._renderer = renderer

    def routes(self) -> list[Route]:
        return [
            Route("/messages/{topic}", self._history),
            Route("/messages/{topic}/{channel}", self._peek),
        ]

    async def _history(self, request: Request) -> Response:
        topic, args = request.path_params["topic"], request.query_params
        nodes, node = await self._nodes(request, topic)
        start, search_text = args.get("from", "").strip(), args.get("q", "").strip()
        problem, history, extent = "", _HistoryPage([]), None
        try:
            if node:
                extent = (await self._cluster.topic_logs([node], topic)).get(node)
                history = await self._browse(node, topic, start, search_text, extent)
        except (HttpRequestError, ConfigError) as error:
            problem = str(error)
        return self._renderer.page(
            request,
            "history.html",
            topic=topic,
            nodes=nodes,
            node=node,
            start=start,
            search_text=search_text,
            history=history,
            extent=extent,
            problem=problem,
            warning="",
        )

    async def _browse(
        self, node: str, topic: str, start: str, search_text: str, extent: TopicLogResponse | None
    ) -> _HistoryPage:
        if extent is None or not extent.count_from(0):
            return _HistoryPage([])
        position = _start_position(start, extent, from_end=not search_text)
        if search_text:
            search = await self._cluster.nsqd(node).search(
                topic, position, search_text, PAGE_MESSAGES
            )
            newer = None
            if search.next_seq is not None and search.next_seq < extent.next_seq:
                newer = format_position(extent.log_id, search.next_seq)
            return _HistoryPage(_rows(search.found), None, newer, search.looked_at)
        messages = await self._cluster.nsqd(node).messages(topic, position, PAGE_MESSAGES)
        if not messages:
            return _HistoryPage([], older=_page_before(extent.next_seq, extent))
        first, last = messages[0].seq, messages[-1].seq
        older = _page_before(first, extent) if first > extent.first_seq else None
        newer = format_position(extent.log_id, last + 1) if last + 1 < extent.next_seq else None
        return _HistoryPage(_rows(messages), older, newer)

    async def _peek(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        nodes, node = await self._nodes(request, topic)
        state = request.query_params.get("state", MESSAGE_STATES[0])
        if state not in MESSAGE_STATES:
            raise HttpError(404, "NOT_FOUND")
        problem, messages = "", []
        try:
            if node:
                messages = await self._cluster.nsqd(node).channel_messages(
                    topic, channel, state, PAGE_MESSAGES
                )
        except HttpRequestError as error:
            problem = str(error)
        return self._renderer.page(
            request,
            "peek.html",
            topic=topic,
            channel=channel,
            nodes=nodes,
            node=node,
            state=state,
            states=MESSAGE_STATES,
            rows=[MessageRow(each, format_body(each.body, each.body_base64)) for each in messages],
            problem=problem,
            warning="",
        )

    async def _nodes(self, request: Request, topic: str) -> tuple[list[str], str]:
        """The nodes of a topic that run Penstock's nsqd, and the selected one; empty if there are
        none."""
        nodes = await nodes_with_topic(self._cluster.new_query(), topic)
        penstock_nodes = await self._cluster.penstock_nsqds(node.address for node in nodes)
        selected = request.query_params.get("node", "")
        if selected not in penstock_nodes:
            selected = next(iter(penstock_nodes), "")
        return penstock_nodes, selected


def _start_position(start: str, extent: TopicLogResponse, *, from_end: bool) -> str:
    """First message of a page, as an argument for nsqd. Raises ConfigError."""
    last_page = str(max(extent.next_seq - PAGE_MESSAGES, extent.first_seq))
    if start in ("", "latest"):
        return last_page if from_end else "earliest"
    position = absolute_position(start)
    log_id, rest = split_position(position)
    if is_seq(rest) and extent.log_id.startswith(log_id):
        # Outside of the log: use the nearest stored message.
        return str(min(max(int(rest), extent.first_seq), extent.next_seq))
    return position


def _page_before(seq: int, extent: TopicLogResponse) -> str:
    """The position of the page that ends before a message."""
    return format_position(extent.log_id, max(seq - PAGE_MESSAGES, extent.first_seq))


def _rows(messages: list[StoredMessage]) -> list[MessageRow]:
    return [
        MessageRow(message, format_body(message.body, message.body_base64))
        for message in reversed(messages)
    ]
