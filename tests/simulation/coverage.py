"""Events that a campaign must contain at least once, so that it tests all of them.

Events are counted by name. Required are every step, every state of a message, every way in which a
process can end, and disk faults of every kind for every kind of file.
"""

from collections import Counter

from tests.simulation.schedule import VERBS

__all__ = ["REQUIRED", "coverage_table", "missing_from"]

_STATES = (
    "queued",
    "deferred",
    "held by the topic",
    "released by the topic",
    "delivered",
    "delivered when due",
    "delivered again",
    "finished",
    "requeued",
    "requeued with delay",
    "requeued on disconnect",
    "left in flight by a disconnected consumer",
    "timed out",
    "touched",
    "sampled away",
    "cancelled",
    "requeued before its due time",
    "requeued from a consumer",
    "trimmed",
)
_CHANNELS = (
    "created",
    "created at a position",
    "deleted",
    "paused",
    "unpaused",
    "emptied of messages",
    "emptied of deferred messages",
    "rewound",
    "moved forward",
    "committed",
)
_TOPICS = ("created", "deleted", "paused", "unpaused", "emptied of held messages")
_ENDS = (
    "clean",
    "clean with failures",
    "kill",
    "power loss",
    "in the middle of a write",
    "while starting",
)
_PUBLISHES = ("PUB", "MPUB", "DPUB", "DMPUB", "E_BAD_MESSAGE", "E_BAD_TOPIC", "E_INVALID")
_REFUSALS = ("PUB", "MPUB", "DPUB", "DMPUB", "SUB", "FIN", "REQ", "TOUCH")
_FAULTS = (
    "ENOSPC",
    "EIO",
    "a short write",
    "write *.log",
    "write cursors",
    "write *.index",
    "write nsqd.dat",
    "write penstock.format",
    "sync *.log",
    "sync cursors",
    "sync nsqd.dat",
    "sync_folder folder",
    "truncate *.log",
    "create *.log",
    "create cursors",
    "remove *.log",
    "remove cursors",
    "rename folder",
    "make_folder folder",
)

REQUIRED = (
    *(f"step: {verb}" for verb in VERBS),
    *(f"state: {state}" for state in _STATES),
    *(f"channel: {event}" for event in _CHANNELS),
    *(f"topic: {event}" for event in _TOPICS),
    *(f"end: {end}" for end in _ENDS),
    *(f"publish: {kind}" for kind in _PUBLISHES),
    *(f"refused: E_{word}_FAILED" for word in _REFUSALS),
    *(f"fault: {fault}" for fault in _FAULTS),
    "publish: refused by the disk",
    "ephemeral: dropped at overflow",
    "crash: finished shortly before, open again",
    "crash: unacknowledged publish was stored",
    "power: lost writes that were not synced",
)


def missing_from(coverage: Counter[str]) -> list[str]:
    """Required events that have not occurred."""
    return [what for what in REQUIRED if not coverage[what]]


def coverage_table(coverage: Counter[str]) -> str:
    """Number of occurrences of each event, as a Markdown table."""
    rows = [f"| {what} | {count:,} |" for what, count in sorted(coverage.items())]
    return "\n".join(["| event | count |", "|---|---|", *rows])
