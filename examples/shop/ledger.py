"""What was acknowledged, event by event, and what has to come of it.

A line of JSON for each event, written once an nsqd has said that it is stored. Nothing here knows
Spark: what a window's revenue is, and which payment belongs to which order, is worked out once more
in plain Python, to be compared with.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from examples.shop.events import Event

__all__ = ["Ledger", "Revenue", "lines_of", "read_ledger"]

# As in stream.toml.
WINDOW_MS = 10_000
PAYABLE_MS = 60_000


class Revenue(NamedTuple):
    """Of a window of time."""

    orders: int = 0
    cents: int = 0


@dataclass(frozen=True)
class Ledger:
    """The events that were acknowledged."""

    events: list[Event]

    def ids(self, topic: str) -> set[str]:
        """Of all events of a topic."""
        return {each.id for each in self.events if each.topic == topic}

    def broken(self, topic: str) -> set[str]:
        """Of those that fit no schema."""
        return {each.id for each in self.events if each.topic == topic and each.flaw}

    def sound(self, topic: str) -> set[str]:
        """Of those that do."""
        return self.ids(topic) - self.broken(topic)

    @property
    def late(self) -> int:
        """How many were told long after they happened."""
        return sum(each.is_late for each in self.events)

    def revenue(self) -> dict[int, Revenue]:
        """By the time at which a window starts, in milliseconds; the order that closes the shop is
        in a window that never ends."""
        windows: dict[int, Revenue] = defaultdict(Revenue)
        for each in self._sound("orders"):
            if not each.is_closing:
                start = each.at_ms - each.at_ms % WINDOW_MS
                orders, cents = windows[start]
                windows[start] = Revenue(orders + 1, cents + each.cents)
        return dict(windows)

    def paid(self) -> set[str]:
        """The ids of orders that were paid in time."""
        ordered = {each.id: each.at_ms for each in self._sound("orders")}
        return {
            each.order_id
            for each in self._sound("payments")
            if each.order_id in ordered and 0 <= each.at_ms - ordered[each.order_id] <= PAYABLE_MS
        }

    def _sound(self, topic: str) -> Iterable[Event]:
        return (each for each in self.events if each.topic == topic and not each.flaw)


def lines_of(events: Iterable[Event]) -> bytes:
    """For the ledger's file."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in events)


def read_ledger(path: Path) -> Ledger:
    decode = msgspec.json.Decoder(Event).decode
    return Ledger([decode(line) for line in path.read_bytes().splitlines()])
