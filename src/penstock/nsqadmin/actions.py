"""Changes to the cluster: the commands that nsqds and nsqlookupds get, and the forms of the pages.

`GET /actions/{name}` shows a confirmation with the effects of an action, as a dialog or as a page.
`POST /actions/{name}` runs it, sends a notification, and redirects to a page that shows the result.
The forms work without scripts. `access.AuthMiddleware` has already refused requests of other sites.
"""

from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster, ClusterQuery, Node
from penstock.admin_api.seeking import move
from penstock.common import names
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.access import Admins
from penstock.nsqadmin.confirmations import Confirmation, Confirmations, position_text
from penstock.nsqadmin.notifications import ChangeEvent, Notifier
from penstock.nsqadmin.responses import Renderer
from penstock.nsqadmin.targets import Args, node_at, nodes_with_topic, target_of
from penstock.nsqadmin.watcher import Watcher

__all__ = ["Actions", "ClusterCommands"]

_PAST_TENSE = {
    "create": "created",
    "pause": "paused",
    "unpause": "unpaused",
    "empty": "emptied",
    "delete": "deleted",
}

# URL to redirect to, and the notice to show there.
Outcome = tuple[str, str]
Handler = Callable[[Request, str, Args], Awaitable[Outcome]]


class ClusterCommands:
    """The changes that NSQ's nsqadmin offers, applied to every daemon concerned.

    Each method returns its query, whose `warning` lists the daemons that failed. An unknown name
    raises HttpError 404. `UpstreamError` is raised if every daemon failed.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, topic: str, channel: str = "") -> ClusterQuery:
        """Create a topic and, if `channel` is given, a channel of it.

        With nsqlookupds, they get both names, and the nsqds that have the topic get the channel.
        Without nsqlookupds, all nsqds get both.
        """
        query = self._cluster.new_query()
        args = _name_args(topic, channel)
        await self._post_to_lookupds(query, "/topic/create", {"topic": topic})
        if channel:
            await self._post_to_lookupds(query, "/channel/create", args)
        if self._cluster.lookupds:
            nodes = await query.nodes_with_topic(topic) if channel else []
        else:
            nodes = await query.nodes()
            await query.post(_addresses(nodes), "/topic/create", {"topic": topic})
        if channel:
            await query.post(_addresses(nodes or ()), "/channel/create", args)
        return query

    async def delete(self, topic: str, channel: str = "") -> ClusterQuery:
        """Delete a channel, or a topic with all its channels."""
        query = self._cluster.new_query()
        path, args = f"/{_kind(channel)}/delete", _name_args(topic, channel)
        nodes = await nodes_with_topic(query, topic)  # before nsqlookupds forget the producers
        lookupd_count = await self._post_to_lookupds(query, path, args)
        nsqd_count = await query.post(_addresses(nodes), path, args)
        if channel and not lookupd_count and not nsqd_count:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return query

    async def apply(self, action: str, topic: str, channel: str = "") -> ClusterQuery:
        """Pause, unpause or empty a topic or channel."""
        query = self._cluster.new_query()
        nodes = await nodes_with_topic(query, topic)
        path = f"/{_kind(channel)}/{action}"
        await query.post(_addresses(nodes), path, _name_args(topic, channel))
        if query.was_not_found or not nodes:
            raise HttpError(404, f"{_kind(channel).upper()}_NOT_FOUND")
        return query

    async def tombstone(self, topic: str, address: str) -> ClusterQuery:
        """Hide a node from lookups of a topic, and delete the topic on that node."""
        query = self._cluster.new_query()
        node = await node_at(query, address)
        args = {"topic": topic, "node": address}
        await self._post_to_lookupds(query, "/topic/tombstone", args)
        await query.post([node.address], "/topic/delete", {"topic": topic})
        return query

    async def _post_to_lookupds(self, query: ClusterQuery, path: str, args: dict[str, str]) -> int:
        return await query.post(self._cluster.lookupds, path, args, what="nsqlookupd")


class Actions:
    """The endpoints of the action forms."""

    def __init__(
        self,
        cluster: Cluster,
        watcher: Watcher,
        renderer: Renderer,
        admins: Admins,
        notifier: Notifier,
    ) -> None:
        self._cluster = cluster
        self._watcher = watcher
        self._renderer = renderer
        self._admins = admins
        self._notifier = notifier
        self._commands = ClusterCommands(cluster)
        self._confirmations = Confirmations(cluster, watcher)
        self._handlers: dict[str, Handler] = {
            "create": self._create,
            "pause": self._apply,
            "unpause": self._apply,
            "empty": self._apply,
            "delete": self._delete,
            "tombstone": self._tombstone,
            "drain": self._drain,
            "seek": self._seek,
            "retention": self._retention,
            "cancel": self._cancel,
            "requeue": self._requeue,
            "kick": self._kick,
        }

    def routes(self) -> list[Route]:
        return [
            Route("/actions/{name}", self._confirm, methods=["GET"]),
            Route("/actions/{name}", self._run, methods=["POST"]),
            # URLs of earlier versions, with the name in the argument `deed`.
            Route("/confirm", self._confirm, methods=["GET"]),
            Route("/do", self._run, methods=["POST"]),
        ]

    async def _confirm(self, request: Request) -> Response:
        self._admins.check(request)
        args = request.query_params
        name, problem = self._action_name(request, args), ""
        confirmation: Confirmation | None = None
        try:
            confirmation = await self._confirmations.confirmation_for(name, args)
        except (HttpRequestError, ConfigError) as error:
            problem = str(error)
        return self._renderer.page(
            request,
            "confirm.html",
            action=name,
            args=dict(args),
            confirmation=confirmation,
            problem=problem,
            back=self._page_of(args),
        )

    async def _run(self, request: Request) -> Response:
        self._admins.check(request)
        form = await request.form(max_files=0, max_fields=20)
        args = {name: value for name, value in form.items() if isinstance(value, str)}
        name = self._action_name(request, args)
        try:
            url, notice = await self._handlers[name](request, name, args)
        except (HttpRequestError, ConfigError) as error:
            return self._renderer.redirect(self._page_of(args), f"Action failed. {error}")
        await self._watcher.refresh_after_change()
        return self._renderer.redirect(url, notice)

    # Handlers.

    async def _create(self, request: Request, _: str, args: Args) -> Outcome:
        topic, channel, _node = target_of(args)
        for kind, name in (("topic", topic), ("channel", channel)):
            if not names.is_valid(name) and (name or kind == "topic"):
                raise ConfigError(
                    f"{name!r} is not a valid {kind} name: use 1 to 64 letters, digits, '.', '_'"
                    " and '-'."
                )
        query = await self._commands.create(topic, channel)
        self._notify(request, "create_topic", args)
        if channel:
            self._notify(request, "create_channel", args)
        # The channel may have no page yet: nsqlookupds know it, but no nsqd has it.
        url = self._renderer.link("topics", topic)
        return url, _notice("create", args, query.warning)

    async def _apply(self, request: Request, name: str, args: Args) -> Outcome:
        topic, channel, _ = target_of(args)
        query = await self._commands.apply(name, topic, channel)
        self._notify(request, f"{name}_{_kind(channel)}", args)
        return self._page_of(args), _notice(name, args, query.warning)

    async def _delete(self, request: Request, _: str, args: Args) -> Outcome:
        topic, channel, _node = target_of(args)
        query = await self._commands.delete(topic, channel)
        self._notify(request, f"delete_{_kind(channel)}", args)
        url = self._renderer.link("topics", topic) if channel else self._renderer.link("topics")
        return url, _notice("delete", args, query.warning)

    async def _tombstone(self, request: Request, _: str, args: Args) -> Outcome:
        topic, _channel, node = target_of(args)
        query = await self._commands.tombstone(topic, node)
        self._notify(request, "tombstone_topic_producer", args)
        notice = f"Topic {topic} tombstoned on {node}. {query.warning}"
        return self._renderer.link("nodes", node), notice

    async def _drain(self, request: Request, _: str, args: Args) -> Outcome:
        node = args.get("node", "")
        await self._check_node(node)
        await self._cluster.nsqd(node).drain()
        self._notify(request, "drain_node", args)
        return self._renderer.link("nodes"), f"{node} is draining. It stops when it is empty."

    async def _seek(self, request: Request, _: str, args: Args) -> Outcome:
        topic, channel, _node = target_of(args)
        is_commit_channel = await self._confirmations.is_commit_channel(topic, channel)
        moves = await self._confirmations.moves(args)
        await move(moves, topic, channel)
        self._notify(request, "seek_channel", args)
        notice = f"Channel {channel} moved to {position_text(args.get('to', ''))}."
        if not is_commit_channel:
            redelivered = sum(each.again for each in moves)
            notice += f" Messages to be delivered again: {redelivered:,}."
        return self._page_of(args), notice

    async def _retention(self, request: Request, _: str, args: Args) -> Outcome:
        topic, _channel, _node = target_of(args)
        for node in await self._confirmations.penstock_nodes(topic):
            await self._cluster.nsqd(node).set_retention(topic, _retention_args(args))
        self._notify(request, "retention_topic", args)
        return self._page_of(args), f"Retention of topic {topic} changed."

    async def _cancel(self, request: Request, _: str, args: Args) -> Outcome:
        topic, channel, node = target_of(args)
        await self._check_node(node)
        await self._cluster.nsqd(node).cancel(topic, channel, args.get("id", ""))
        self._notify(request, "cancel_message", args)
        url = self._renderer.link("messages", topic, channel, node=node, state="deferred")
        return url, f"Message {args.get('id', '')} cancelled."

    async def _requeue(self, request: Request, _: str, args: Args) -> Outcome:
        topic, channel, node = target_of(args)
        await self._check_node(node)
        await self._cluster.nsqd(node).requeue(topic, channel, args.get("id", ""))
        self._notify(request, "requeue_message", args)
        state = args.get("state", "")
        url = self._renderer.link("messages", topic, channel, node=node, state=state)
        return url, f"Message {args.get('id', '')} requeued."

    async def _kick(self, request: Request, _: str, args: Args) -> Outcome:
        node = args.get("node", "")
        await self._check_node(node)
        await self._cluster.nsqd(node).close_client(args.get("client", ""), args.get("since", ""))
        self._notify(request, "kick_client", args)
        return self._page_of(args), f"Consumer {args.get('client', '')} disconnected from {node}."

    # Helpers.

    def _action_name(self, request: Request, args: Args) -> str:
        name: str = request.path_params.get("name") or args.get("deed", "")
        if name not in self._handlers:
            raise HttpError(404, "NOT_FOUND")
        return name

    async def _check_node(self, address: str) -> None:
        """Raises HttpError 404 if the cluster has no such node, so that nsqadmin cannot be made to
        send requests to arbitrary addresses."""
        await node_at(self._cluster.new_query(), address)

    def _page_of(self, args: Args) -> str:
        """URL of the page of the action's target."""
        topic, channel, node = target_of(args)
        link = self._renderer.link
        if topic and names.is_valid(topic):
            return link("topics", topic, channel) if channel else link("topics", topic)
        return link("nodes", node) if node else link("lookup")

    def _notify(self, request: Request, verb: str, args: Args) -> None:
        topic, channel, node = target_of(args)
        channel = "" if verb == "create_topic" else channel
        event = ChangeEvent(
            verb=verb,
            topic=topic,
            channel=channel,
            node=node,
            client=args.get("client", ""),
            message_id=args.get("id", ""),
        )
        self._notifier.notify(event, request)


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"


def _notice(name: str, args: Args, warning: str) -> str:
    topic, channel, _ = target_of(args)
    target = f"Channel {channel} of topic {topic}" if channel else f"Topic {topic}"
    return f"{target} {_PAST_TENSE[name]}. {warning}".rstrip()


def _retention_args(args: Args) -> dict[str, str]:
    """Arguments of nsqd's /topic/retention. Raises ConfigError."""
    if args.get("default"):
        return {"default": "true"}
    time, size = args.get("time", "").strip(), args.get("bytes", "").strip()
    try:
        parse_duration(time or "0")
        int(size or "0")
    except ValueError:
        raise ConfigError(
            "Enter a duration such as 72h, and a size as a number of bytes. 0 turns retention off."
        ) from None
    return {"time": time or "0", "bytes": size or "0"}


def _name_args(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic} | ({"channel": channel} if channel else {})


def _addresses(nodes: Iterable[Node]) -> list[str]:
    return [node.address for node in nodes]
