"""What the pages let an operator do, each asked about first if it can do harm.

`GET /confirm` says what a deed will do, as a dialog within a page or as a page of its own;
`POST /do` does it, tells whoever is to be notified, and goes back to a page that says so.
Forms need no script. That they come from our own pages has been checked before they get here.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster
from penstock.common import names
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.access import Admins
from penstock.nsqadmin.cluster_commands import Orders
from penstock.nsqadmin.confirmation_text import Question
from penstock.nsqadmin.confirmations import Args, Questions, named
from penstock.nsqadmin.notifications import Action, Notifier
from penstock.nsqadmin.penstock_api import PenstockApi
from penstock.nsqadmin.rendering import Renderer
from penstock.nsqadmin.watcher import Watcher

__all__ = ["Deeds"]

_PAST = {
    "create": "created",
    "pause": "paused",
    "unpause": "unpaused",
    "empty": "emptied",
    "delete": "deleted",
}

# Where to go afterwards, and what to say there.
Outcome = tuple[str, str]


class Deeds:
    """The endpoints, and the table of deeds."""

    def __init__(
        self,
        cluster: Cluster,
        watcher: Watcher,
        penstock_api: PenstockApi,
        renderer: Renderer,
        admins: Admins,
        notifier: Notifier,
    ) -> None:
        self._cluster = cluster
        self._watcher = watcher
        self._penstock_api = penstock_api
        self._renderer = renderer
        self._admins = admins
        self._notifier = notifier
        self._orders = Orders(cluster)
        self._questions = Questions(cluster, watcher, penstock_api)
        self._doing: dict[str, Callable[[Request, Args], Awaitable[Outcome]]] = {
            "create": self._create,
            "pause": self._act,
            "unpause": self._act,
            "empty": self._act,
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
        """The table."""
        return [
            Route("/confirm", self._confirm, methods=["GET"]),
            Route("/do", self._do, methods=["POST"]),
        ]

    # Asking.

    async def _confirm(self, request: Request) -> Response:
        self._admins.check(request)
        args = request.query_params
        deed, problem = args.get("deed", ""), ""
        if deed not in self._doing:
            raise HttpError(404, "NOT_FOUND")
        question: Question | None = None
        try:
            question = await self._questions.about(deed, args)
        except (HttpRequestError, ConfigError) as error:
            problem = str(error)
        return self._renderer.page(
            request,
            "confirm.html",
            deed=deed,
            args=dict(args),
            question=question,
            problem=problem,
            back=self._page_of(args),
        )

    # Doing.

    async def _do(self, request: Request) -> Response:
        self._admins.check(request)
        form = await request.form(max_files=0, max_fields=20)
        args = {name: value for name, value in form.items() if isinstance(value, str)}
        do = self._doing.get(args.get("deed", ""))
        if do is None:
            raise HttpError(404, "NOT_FOUND")
        try:
            to, notice = await do(request, args)
        except (HttpRequestError, ConfigError) as error:
            return self._renderer.redirect(self._page_of(args), f"Not done. {error}")
        await self._watcher.refresh_after_change()
        return self._renderer.redirect(to, notice)

    async def _create(self, request: Request, args: Args) -> Outcome:
        topic, channel, _ = named(args)
        for kind, name in (("topic", topic), ("channel", channel)):
            if not names.is_valid(name) and (name or kind == "topic"):
                raise ConfigError(
                    f"{name!r} is no name for a {kind}: 1 to 64 of letters, digits, . _ and -"
                )
        query = await self._orders.create(topic, channel)
        self._notify(request, "create_topic", args)
        if channel:
            self._notify(request, "create_channel", args)
        # A channel may have no page yet: nsqlookupds know it, and no nsqd.
        to = self._renderer.link("topics", topic)
        return to, _said("create", args, query.warning)

    async def _act(self, request: Request, args: Args) -> Outcome:
        topic, channel, _ = named(args)
        query = await self._orders.act(args["deed"], topic, channel)
        self._notify(request, f"{args['deed']}_{_kind(channel)}", args)
        return self._page_of(args), _said(args["deed"], args, query.warning)

    async def _delete(self, request: Request, args: Args) -> Outcome:
        topic, channel, _ = named(args)
        query = await self._orders.delete(topic, channel)
        self._notify(request, f"delete_{_kind(channel)}", args)
        to = self._renderer.link("topics", topic) if channel else self._renderer.link("topics")
        return to, _said("delete", args, query.warning)

    async def _tombstone(self, request: Request, args: Args) -> Outcome:
        topic, _, node = named(args)
        query = await self._orders.tombstone(topic, node)
        self._notify(request, "tombstone_topic_producer", args)
        said = f"Topic {topic} was taken from {node}. {query.warning}"
        return self._renderer.link("nodes", node), said

    async def _drain(self, request: Request, args: Args) -> Outcome:
        node = args.get("node", "")
        await self._check_node(node)
        await self._penstock_api.drain(node)
        self._notify(request, "drain_node", args)
        return self._renderer.link("nodes"), f"{node} drains, and stops when it is empty."

    async def _seek(self, request: Request, args: Args) -> Outcome:
        topic, channel, _ = named(args)
        moves = await self._questions.moves(args)
        await self._penstock_api.seek(moves, topic, channel)
        self._notify(request, "seek_channel", args)
        again = sum(each.again for each in moves)
        said = f"Channel {channel} was moved; {again:,} messages will come once more."
        return self._page_of(args), said

    async def _retention(self, request: Request, args: Args) -> Outcome:
        topic, _, _ = named(args)
        for node in await self._questions.able_nodes(topic):
            await self._penstock_api.set_retention(node, topic, _retention_args(args))
        self._notify(request, "retention_topic", args)
        return self._page_of(args), f"The retention of {topic} was changed."

    async def _cancel(self, request: Request, args: Args) -> Outcome:
        topic, channel, node = named(args)
        await self._check_node(node)
        await self._penstock_api.cancel(node, topic, channel, args.get("id", ""))
        self._notify(request, "cancel_message", args)
        to = self._renderer.link("messages", topic, channel, node=node, state="deferred")
        return to, f"Message {args.get('id', '')} was cancelled."

    async def _requeue(self, request: Request, args: Args) -> Outcome:
        topic, channel, node = named(args)
        await self._check_node(node)
        await self._penstock_api.requeue(node, topic, channel, args.get("id", ""))
        self._notify(request, "requeue_message", args)
        state = args.get("state", "")
        to = self._renderer.link("messages", topic, channel, node=node, state=state)
        return to, f"Message {args.get('id', '')} is to be delivered again."

    async def _kick(self, request: Request, args: Args) -> Outcome:
        node = args.get("node", "")
        await self._check_node(node)
        await self._penstock_api.kick(node, args.get("client", ""), args.get("since", ""))
        self._notify(request, "kick_client", args)
        return self._page_of(args), f"{args.get('client', '')} was disconnected from {node}."

    # Within.

    async def _check_node(self, address: str) -> None:
        """Nothing is sent to an address that is not one of the cluster's."""
        if await self._cluster.new_query().node(address) is None:
            raise HttpError(404, "NODE_NOT_FOUND")

    def _page_of(self, args: Args) -> str:
        """The page of what is named."""
        topic, channel, node = named(args)
        link = self._renderer.link
        if topic and names.is_valid(topic):
            return link("topics", topic, channel) if channel else link("topics", topic)
        return link("nodes", node) if node else link("lookup")

    def _notify(self, request: Request, verb: str, args: Args) -> None:
        topic, channel, node = named(args)
        channel = "" if verb == "create_topic" else channel
        action = Action(
            verb=verb,
            topic=topic,
            channel=channel,
            node=node,
            client=args.get("client", ""),
            message_id=args.get("id", ""),
        )
        self._notifier.notify(action, request)


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"


def _said(deed: str, args: Args, warning: str) -> str:
    topic, channel, _ = named(args)
    name = f"Channel {channel} of {topic}" if channel else f"Topic {topic}"
    return f"{name} was {_PAST[deed]}. {warning}".rstrip()


def _retention_args(args: Args) -> dict[str, str]:
    """As nsqd takes it. Raises ConfigError."""
    if args.get("default"):
        return {"default": "true"}
    time, size = args.get("time", "").strip(), args.get("bytes", "").strip()
    try:
        parse_duration(time or "0")
        int(size or "0")
    except ValueError:
        raise ConfigError("A time is like 72h, a size a number of bytes; 0 keeps nothing") from None
    return {"time": time or "0", "bytes": size or "0"}
