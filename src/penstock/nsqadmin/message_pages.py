"""Pages that show messages: the history of a topic, and what is in a channel. Nothing is consumed.

Both are of one node at a time, because each has a log of its own. Bodies are shown as text,
whatever is in them.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster
from penstock.admin_api.models import StoredMessage, TopicLogResponse
from penstock.admin_api.seeking import absolute_position, is_seq
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.bodies import Shown, shown
from penstock.nsqadmin.penstock_api import STATES, PenstockApi
from penstock.nsqadmin.rendering import Renderer

__all__ = ["MessagePages"]

PAGE_MESSAGES = 50


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message, ready to be shown."""

    message: StoredMessage
    body: Shown


@dataclass(frozen=True, slots=True)
class _Browsed:
    """A page of history: newest first, and where there is more."""

    rows: list[MessageRow]
    older: int | None = None
    newer: int | None = None
    looked_at: int = 0


class MessagePages:
    """The endpoints, and the table of them."""

    def __init__(self, cluster: Cluster, penstock_api: PenstockApi, renderer: Renderer) -> None:
        self._cluster = cluster
        self._penstock_api = penstock_api
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """The table."""
        return [
            Route("/messages/{topic}", self._history),
            Route("/messages/{topic}/{channel}", self._peek),
        ]

    async def _history(self, request: Request) -> Response:
        topic, args = request.path_params["topic"], request.query_params
        nodes, node = await self._nodes(request, topic)
        start, text = args.get("from", "").strip(), args.get("q", "").strip()
        problem, browsed, extent = "", _Browsed([]), None
        try:
            if node:
                extent = (await self._penstock_api.logs_of([node], topic)).get(node)
                browsed = await self._browse(node, topic, start, text, extent)
        except (HttpRequestError, ConfigError) as error:
            problem = str(error)
        return self._renderer.page(
            request,
            "history.html",
            topic=topic,
            nodes=nodes,
            node=node,
            start=start,
            text=text,
            browsed=browsed,
            extent=extent,
            problem=problem,
            warning="",
        )

    async def _browse(
        self, node: str, topic: str, start: str, text: str, extent: TopicLogResponse | None
    ) -> _Browsed:
        if extent is None or not extent.count_from(0):
            return _Browsed([])
        place = _place(start, extent, from_the_end=not text)
        if text:
            search = await self._penstock_api.search(node, topic, place, text, PAGE_MESSAGES)
            newer = search.next_seq
            has_more = newer is not None and newer < extent.next_seq
            rows = _rows(search.found)
            return _Browsed(rows, None, newer if has_more else None, search.looked_at)
        messages = await self._penstock_api.history(node, topic, place, PAGE_MESSAGES)
        if not messages:
            return _Browsed([], older=max(extent.next_seq - PAGE_MESSAGES, extent.first_seq))
        first, last = messages[0].seq, messages[-1].seq
        older = max(first - PAGE_MESSAGES, extent.first_seq) if first > extent.first_seq else None
        newer = last + 1 if last + 1 < extent.next_seq else None
        return _Browsed(_rows(messages), older, newer)

    async def _peek(self, request: Request) -> Response:
        topic, channel = request.path_params["topic"], request.path_params["channel"]
        nodes, node = await self._nodes(request, topic)
        state = request.query_params.get("state", STATES[0])
        if state not in STATES:
            raise HttpError(404, "NOT_FOUND")
        problem, messages = "", []
        try:
            if node:
                messages = await self._penstock_api.peek(node, topic, channel, state, PAGE_MESSAGES)
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
            states=STATES,
            rows=[MessageRow(each, shown(each.body, each.body_base64)) for each in messages],
            problem=problem,
            warning="",
        )

    async def _nodes(self, request: Request, topic: str) -> tuple[list[str], str]:
        """The nodes that can show messages of a topic, and the one that is chosen; none if there
        is none."""
        nodes = await self._cluster.new_query().nodes_with_topic(topic)
        if nodes is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        able = await self._penstock_api.supporting(node.address for node in nodes)
        chosen = request.query_params.get("node", "")
        return able, chosen if chosen in able else next(iter(able), "")


def _place(start: str, extent: TopicLogResponse, *, from_the_end: bool) -> str:
    """Where to begin. Raises ConfigError."""
    last_page = str(max(extent.next_seq - PAGE_MESSAGES, extent.first_seq))
    if start in ("", "latest"):
        return last_page if from_the_end else "earliest"
    place = absolute_position(start)
    if is_seq(place):  # One that is gone, or is yet to come, means the nearest that is there.
        return str(min(max(int(place), extent.first_seq), extent.next_seq))
    return place


def _rows(messages: list[StoredMessage]) -> list[MessageRow]:
    return [
        MessageRow(message, shown(message.body, message.body_base64))
        for message in reversed(messages)
    ]
