"""Texts of the confirmation dialogs: the effects of an action, with current numbers.

`Confirmations` asks the cluster for the numbers and changes nothing; the pure functions below it
write the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.admin_api.cluster import Cluster
from penstock.admin_api.models import ClientSummary
from penstock.admin_api.seeking import Move, absolute_position, is_seq, plan, split_position
from penstock.common.errors import HttpRequestError
from penstock.net.http_server import HttpError
from penstock.nsqadmin.formatting import commas
from penstock.nsqadmin.targets import Args, node_at, nodes_with_topic, target_of
from penstock.nsqadmin.views import (
    ChannelRow,
    NodeRow,
    TopicRow,
    clients_of,
    node_rows,
    topic_rows,
)
from penstock.nsqadmin.watcher import ClusterState, Watcher
from penstock.tools.display import format_count

__all__ = ["Confirmation", "Confirmations", "position_text"]

COMMIT_MODE = "commit"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Text of a confirmation dialog."""

    title: str
    effects: Sequence[str]
    button: str
    is_dangerous: bool = True


class Confirmations:
    """Builds the confirmation of an action."""

    def __init__(self, cluster: Cluster, watcher: Watcher) -> None:
        self._cluster = cluster
        self._watcher = watcher

    async def confirmation_for(self, action: str, args: Args) -> Confirmation | None:
        """The confirmation to show before the action; None for a seek without a position, which the
        operator must enter first. Raises HttpError 404 if the target does not exist."""
        topic, channel, node = target_of(args)
        match action:
            case "tombstone":
                row = await self._topic_row(topic, only=node)
                return confirm_tombstone(topic, node, row.depth)
            case "drain":
                return await self._drain(node)
            case "seek":
                if not args.get("to"):
                    return None
                return await self._seek(args)
            case "cancel":
                return confirm_cancel(args.get("id", ""), channel)
            case "requeue":
                return confirm_requeue(args.get("id", ""), channel, args.get("state", ""))
            case "kick":
                return await self._kick(args)
            case _ if channel:
                return confirm_channel(action, await self._channel_row(topic, channel))
            case _:
                return confirm_topic(action, await self._topic_row(topic))

    async def moves(self, args: Args) -> list[Move]:
        """How far the channel moves on each node. Raises HttpRequestError or ConfigError."""
        topic, channel, only = target_of(args)
        position = absolute_position(args.get("to", "").strip())
        nodes = [node for node in await self.penstock_nodes(topic) if not only or node == only]
        stats = await self._cluster.only(nodes).snapshot(topic, channel)
        apis = [self._cluster.nsqd(node) for node in nodes]
        return await plan(apis, stats, topic, channel, position)

    async def is_commit_channel(self, topic: str, channel: str) -> bool:
        """Whether the channel stores the committed position of a job and has no consumers."""
        return (await self._channel_row(topic, channel)).mode == COMMIT_MODE

    async def penstock_nodes(self, topic: str) -> list[str]:
        """The nodes of a topic that run Penstock's nsqd. Raises HttpError 404 if there are none."""
        nodes = await self._cluster.new_query().nodes_with_topic(topic)
        penstock_nodes = await self._cluster.penstock_nsqds(node.address for node in nodes or ())
        if not penstock_nodes:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return penstock_nodes

    async def _drain(self, address: str) -> Confirmation:
        query = self._cluster.new_query()
        node = await node_at(query, address)
        state = ClusterState(0.0, [], [node], await query.stats([node]))
        return confirm_drain(node_rows(state, self._watcher.metrics_store)[0])

    async def _seek(self, args: Args) -> Confirmation:
        topic, channel, _ = target_of(args)
        row = await self._channel_row(topic, channel)
        return confirm_seek(row, args["to"], await self.moves(args))

    async def _kick(self, args: Args) -> Confirmation:
        topic, channel, address = target_of(args)
        query = self._cluster.new_query()
        node = await node_at(query, address)
        answers = await query.stats([node], topic, channel, clients=True)
        wanted = args.get("client"), args.get("since")
        for client in clients_of(answers, topic, channel):
            if wanted == (client.remote_address, str(client.connect_ts)):
                return confirm_kick(client, channel, address)
        raise HttpRequestError(address, "the client is no longer connected")

    async def _channel_row(self, topic: str, channel: str) -> ChannelRow:
        row = await self._topic_row(topic)
        if channel not in row.channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return row.channels[channel]

    async def _topic_row(self, topic: str, *, only: str = "") -> TopicRow:
        query = self._cluster.new_query()
        nodes = await nodes_with_topic(query, topic)
        answers = await query.stats(
            [node for node in nodes if not only or node.has_address(only)], topic
        )
        rows = topic_rows(ClusterState(0.0, [topic], nodes, answers), self._watcher.metrics_store)
        return next(row for row in rows if row.name == topic)


def confirm_topic(action: str, row: TopicRow) -> Confirmation:
    """Confirmation of pausing, emptying or deleting a topic."""
    nodes, channels = format_count(row.nodes, "node"), format_count(len(row.channels), "channel")
    held = format_count(row.depth + row.in_flight + row.deferred, "message")
    match action:
        case "pause":
            effects = [
                f"New messages stay in the topic. Its {channels} will not receive them.",
                "No messages are lost. Messages that are already in a channel are delivered.",
            ]
            title = f"Pause topic {row.name}?"
            return Confirmation(title, effects, "Pause topic", is_dangerous=False)
        case "empty":
            held = format_count(row.own_depth, "message")
            effects = [
                f"{held} in the topic itself, on {nodes}, will be deleted.",
                "Messages in its channels are kept.",
            ]
            return Confirmation(f"Empty topic {row.name}?", effects, "Empty topic")
        case _:
            effects = [
                f"The topic will be deleted on {nodes}, with its {channels} and {held}.",
                "All of its stored messages will be deleted, too.",
                f"{format_count(row.clients, 'consumer')} will be disconnected.",
                "The next message published to it creates the topic again.",
            ]
            return Confirmation(f"Delete topic {row.name}?", effects, "Delete topic")


def confirm_channel(action: str, row: ChannelRow) -> Confirmation:
    """Confirmation of pausing, emptying or deleting a channel."""
    if row.mode == COMMIT_MODE:
        effects = _effects_on_commit_channel(action, row)
    else:
        effects = _effects_on_channel(action, row)
    match action:
        case "pause":
            title = f"Pause channel {row.name}?"
            return Confirmation(title, effects, "Pause channel", is_dangerous=False)
        case "empty":
            return Confirmation(f"Empty channel {row.name}?", effects, "Empty channel")
        case _:
            return Confirmation(f"Delete channel {row.name}?", effects, "Delete channel")


def _effects_on_channel(action: str, row: ChannelRow) -> list[str]:
    consumers = format_count(row.clients, "consumer")
    held = (
        f"{format_count(row.depth, 'queued message')}, {commas(row.in_flight)} in flight and"
        f" {commas(row.deferred)} deferred"
    )
    match action:
        case "pause":
            return [
                f"{consumers} will receive no messages until the channel is unpaused.",
                f"No messages are lost: {commas(row.depth)} are queued now, new ones are added.",
            ]
        case "empty":
            return [
                f"{held} will be deleted from this channel and never delivered.",
                "Other channels of the topic are not affected.",
            ]
        case _:
            return [
                f"{held} will be deleted from this channel.",
                f"{consumers} will be disconnected.",
                "Other channels of the topic are not affected.",
                "If a consumer subscribes again, the channel is created again.",
                "It then receives only messages published after that.",
            ]


def _effects_on_commit_channel(action: str, row: ChannelRow) -> list[str]:
    """Effects on a channel that stores the committed position of a job and has no consumers. nsqd
    keeps the messages that the channel, another channel or the retention needs."""
    purpose = "This channel stores the position of a job that reads the log, such as a Spark query."
    uncommitted = f"The job has not committed {format_count(row.depth, 'message')} yet."
    loss = [
        "nsqd may then delete those that no other channel and no retention setting keeps.",
        "If they are deleted before the job reads them, the job fails or skips them.",
    ]
    match action:
        case "pause":
            return [purpose, "Pausing the channel does not stop the job. Stop the job itself."]
        case "empty":
            return [purpose, f"{uncommitted} All of them will count as committed.", *loss]
        case _:
            return [
                purpose,
                uncommitted,
                *loss,
                "A running job creates the channel again at its next commit.",
                "That does not restore deleted messages.",
                "Delete the channel only if the job is no longer used.",
            ]


def confirm_tombstone(topic: str, node: str, depth: int) -> Confirmation:
    """Confirmation of removing a topic from one node."""
    effects = [
        f"The topic and its {format_count(depth, 'message')} on this node will be deleted.",
        "Other nodes keep the topic.",
        "For a while, nsqlookupd does not list this node for the topic.",
        "If a producer still publishes the topic to this node, it is created again.",
    ]
    return Confirmation(f"Tombstone topic {topic} on {node}?", effects, "Tombstone")


def confirm_drain(row: NodeRow) -> Confirmation:
    """Confirmation of stopping a node after its messages are consumed."""
    held, consumers = (
        format_count(row.depth, "queued message"),
        format_count(row.clients, "consumer"),
    )
    effects = [
        "The node will refuse new messages. nsqlookupd stops sending producers to it.",
        f"The node has {held} and {consumers}. nsqd stops when all messages are finished.",
        "To undo this, restart nsqd.",
    ]
    return Confirmation(f"Drain {row.node.address}?", effects, "Drain node")


def confirm_seek(row: ChannelRow, position: str, moves: Sequence[Move]) -> Confirmation:
    """Confirmation of moving a channel to another position in the log."""
    ahead = sum(each.ahead for each in moves)
    redelivered, skipped = sum(each.again for each in moves), sum(each.skipped for each in moves)
    if row.mode == COMMIT_MODE:
        effects = _effects_of_committed_seek(position, ahead, redelivered, skipped)
    else:
        effects = [
            f"The channel moves to {position_text(position)}.",
            f"It will deliver {format_count(ahead, 'message')}.",
        ]
        if redelivered:
            effects.append(
                f"{format_count(redelivered, 'finished message')} will be delivered again."
            )
        if skipped:
            effects.append(f"{format_count(skipped, 'unfinished message')} will be skipped.")
        if not redelivered and not skipped:
            effects.append("The channel is already at this position.")
        effects += [
            "Consumers stay connected.",
            "nsqd refuses FIN and REQ for the messages that they have in flight now.",
        ]
    return Confirmation(f"Rewind channel {row.name}?", effects, "Rewind channel")


def _effects_of_committed_seek(
    position: str, ahead: int, uncommitted: int, committed: int
) -> list[str]:
    """Effects of moving a channel in commit mode, which has no consumers."""
    effects = [
        "This channel stores the position of a job that reads the log, such as a Spark query.",
        f"The committed position moves to {position_text(position)}.",
        f"{format_count(ahead, 'message')} will count as not committed.",
    ]
    if uncommitted:
        effects.append(f"The job had committed {commas(uncommitted)} of them.")
    if committed:
        effects += [
            f"{format_count(committed, 'message')} that the job has not committed will be skipped.",
            "nsqd may delete those that no other channel and no retention setting keeps.",
        ]
    effects.append("The job itself does not move: it continues from its own checkpoint.")
    return effects


def position_text(position: str) -> str:
    """A position as the operator entered it, for use in a sentence."""
    position = position.strip()
    if position == "earliest":
        return "the earliest stored message"
    if position == "latest":
        return "the end of the log"
    if is_seq(position):
        return f"sequence number {position}"
    log_id, seq = split_position(position)
    if log_id:
        return f"sequence number {seq} of log {log_id}"
    is_time = absolute_position(position) == position
    return position if is_time else f"{position} ago"


def confirm_kick(client: ClientSummary, channel: str, node: str) -> Confirmation:
    """Confirmation of closing the connection of one consumer."""
    held = format_count(client.in_flight_count, "message")
    effects = [
        f"The connection from {client.remote_address} to {node} will be closed.",
        f"{held} in flight will be requeued at once, for other consumers of {channel}.",
        "Most client libraries reconnect automatically.",
    ]
    name = client.client_id or client.hostname or client.remote_address
    return Confirmation(f"Disconnect {name}?", effects, "Disconnect")


def confirm_requeue(id: str, channel: str, state: str) -> Confirmation:
    """Confirmation of delivering one message again."""
    if state == "deferred":
        effects = [f"Message {id} will be delivered now instead of at its scheduled time."]
    else:
        effects = [
            f"Message {id} will be taken from the consumer that is processing it.",
            "If that consumer still finishes it, nsqd refuses the FIN.",
            "The message may be processed twice.",
        ]
    effects.append(f"The next ready consumer of {channel} receives it.")
    return Confirmation("Requeue this message?", effects, "Requeue message", is_dangerous=False)


def confirm_cancel(id: str, channel: str) -> Confirmation:
    """Confirmation of deleting one deferred message from a channel."""
    effect = f"Channel {channel} will never deliver message {id}."
    return Confirmation("Cancel this message?", [effect], "Cancel message")
