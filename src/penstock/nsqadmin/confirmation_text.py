"""What a change will do, in words, before it is done. Pure.

The numbers are those of the moment at which the operator is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.admin_api.models import ClientSummary
from penstock.admin_api.seeking import Move
from penstock.nsqadmin.rendering import commas
from penstock.nsqadmin.views import ChannelRow, NodeRow, TopicRow

__all__ = [
    "Question",
    "about_cancel",
    "about_channel",
    "about_client",
    "about_drain",
    "about_requeue",
    "about_seek",
    "about_tombstone",
    "about_topic",
]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done."""

    title: str
    facts: Sequence[str]
    verb: str  # what the button says
    is_dangerous: bool = True


def _count(number: float, thing: str, things: str = "") -> str:
    return f"{commas(number)} {thing if number == 1 else things or thing + 's'}"


def about_topic(deed: str, row: TopicRow) -> Question:
    """Deeds to a topic as a whole."""
    nodes, channels = _count(row.nodes, "node"), _count(len(row.channels), "channel")
    held = _count(row.depth + row.in_flight + row.deferred, "message")
    waiting = "message that waits" if row.own_depth == 1 else "messages that wait"
    match deed:
        case "pause":
            facts = [
                f"What is published to it waits in the topic. Its {channels} get none of it.",
                "Nothing is lost. Messages that are in a channel already are delivered.",
            ]
            return Question(f"Pause topic {row.name}?", facts, "Pause topic", is_dangerous=False)
        case "empty":
            facts = [
                f"{commas(row.own_depth)} {waiting} in the topic itself, on {nodes}, will be gone.",
                "What is in its channels stays there.",
            ]
            return Question(f"Empty topic {row.name}?", facts, "Empty topic")
        case _:
            facts = [
                f"It will be deleted on {nodes}, with its {channels} and the {held} in them.",
                "All that is stored of it goes too.",
                f"{_count(row.clients, 'consumer')} will be disconnected.",
                "Whoever publishes to it makes it anew.",
            ]
            return Question(f"Delete topic {row.name}?", facts, "Delete topic")


def about_channel(deed: str, row: ChannelRow) -> Question:
    """Deeds to a channel."""
    facts = _facts_for_commits(deed, row) if row.mode == "commit" else _facts(deed, row)
    match deed:
        case "pause":
            title = f"Pause channel {row.name}?"
            return Question(title, facts, "Pause channel", is_dangerous=False)
        case "empty":
            return Question(f"Empty channel {row.name}?", facts, "Empty channel")
        case _:
            return Question(f"Delete channel {row.name}?", facts, "Delete channel")


def _facts(deed: str, row: ChannelRow) -> list[str]:
    """Confirmation text for a channel that consumers subscribe to."""
    consumers = _count(row.clients, "consumer")
    held = (
        f"{_count(row.depth, 'message')} waiting, {commas(row.in_flight)} in flight and"
        f" {commas(row.deferred)} deferred"
    )
    match deed:
        case "pause":
            return [
                f"Its {consumers} will get no messages until it is unpaused.",
                f"Nothing is lost: {_count(row.depth, 'message')} waiting now, more to come.",
            ]
        case "empty":
            return [
                f"{held} will be dropped. This channel will not deliver them.",
                "Other channels of the topic keep theirs.",
            ]
        case _:
            return [
                f"{held} will be dropped, and {consumers} disconnected.",
                "Other channels of the topic keep theirs.",
                "A consumer that subscribes again creates the channel anew.",
                "It then gets messages that are published from then on, not the dropped ones.",
            ]


def _facts_for_commits(deed: str, row: ChannelRow) -> list[str]:
    """Confirmation text for a channel that stores the committed position of a job and has no
    consumers. Its messages stay in the log as long as it, another channel or the retention needs
    them."""
    purpose = "A job that reads the log, such as a Spark query, marks its position with it."
    uncommitted = f"The job has not committed {_count(row.depth, 'message')} yet."
    loss = [
        "nsqd may then delete those that no other channel and no retention keeps.",
        "The job cannot read deleted messages: it fails, or skips them.",
    ]
    match deed:
        case "pause":
            return [purpose, "Pausing it does not stop the job: stop the job itself."]
        case "empty":
            return [purpose, f"{uncommitted} All of them will count as committed.", *loss]
        case _:
            return [
                purpose,
                uncommitted,
                *loss,
                "A running job creates the channel anew at its next commit.",
                "That does not bring deleted messages back: delete it only if the job is given up.",
            ]


def about_tombstone(topic: str, node: str, depth: int) -> Question:
    """Taking a topic from one node."""
    facts = [
        f"It will be deleted on this node, with the {_count(depth, 'message')} it holds there.",
        "Other nodes keep theirs. For a while, consumers will not be sent to this node for it.",
        "A producer that still publishes there makes it anew.",
    ]
    return Question(f"Take topic {topic} from {node}?", facts, "Tombstone")


def about_drain(row: NodeRow) -> Question:
    """Emptying a node for good."""
    held, consumers = _count(row.depth, "message"), _count(row.clients, "consumer")
    facts = [
        "It will refuse messages from now on, and producers will be told to go elsewhere.",
        f"When its {consumers} have taken the {held} that it holds, nsqd stops.",
        "Only starting it again undoes this.",
    ]
    return Question(f"Drain {row.node.address}?", facts, "Drain node")


def about_seek(channel: str, place: str, moves: Sequence[Move]) -> Question:
    """Moving a channel to another place in the log."""
    again, skipped = sum(each.again for each in moves), sum(each.skipped for each in moves)
    ahead = sum(each.ahead for each in moves)
    facts = [f"From {place} on, {_count(ahead, 'message')} will be delivered."]
    if again:
        facts.append(f"{commas(again)} of them were done with, and will come once more.")
    if skipped:
        facts.append(f"{_count(skipped, 'message')} that nobody has done yet will be skipped.")
    if not again and not skipped:
        facts.append("The channel is there already.")
    facts.append("What consumers have in flight is forgotten; they stay connected.")
    return Question(f"Move channel {channel}?", facts, "Move channel")


def about_client(client: ClientSummary, channel: str, node: str) -> Question:
    """Ending one consumer's connection."""
    held = _count(client.in_flight_count, "message")
    facts = [
        f"The connection from {client.remote_address} to {node} will be closed.",
        f"The {held} it has in flight will come back at once, for other consumers of {channel}.",
        "Most clients connect again by themselves.",
    ]
    name = client.client_id or client.hostname or client.remote_address
    return Question(f"Disconnect {name}?", facts, "Disconnect")


def about_requeue(id: str, channel: str, state: str) -> Question:
    """Delivering one message again."""
    if state == "deferred":
        facts = [f"Message {id} will be delivered now, and not at the time it waits for."]
    else:
        facts = [
            f"Message {id} will be taken from the consumer that has it.",
            "An answer that it still gives will be refused, and its work may be done twice.",
        ]
    facts.append(f"It goes to any consumer of {channel} that is ready.")
    return Question("Requeue this message?", facts, "Requeue message", is_dangerous=False)


def about_cancel(id: str, channel: str) -> Question:
    """Dropping one deferred message."""
    fact = f"Channel {channel} will never deliver message {id}."
    return Question("Cancel this message?", [fact], "Cancel message")
