"""The acknowledged events, and the results expected from them.

The ledger has a line of JSON for each event, written after nsqd has acknowledged it. The revenue of
windows and the paid orders are computed in plain Python, for comparison with Spark's results.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from examples.shop.events import Event

__all__ = ["Ledger", "Revenue", "encode_lines", "read_ledger"]

# As in stream.toml.
WINDOW_MS = 10_000
PAYABLE_MS = 60_000


class Revenue(NamedTuple):
    """Revenue of a window."""

    orders: int = 0
    cents: int = 0


@dataclass(frozen=True)
class Ledger:
    """The acknowledged events."""

    events: list[Event]

    def ids(self, topic: str) -> set[str]:
        """Ids of all events of a topic."""
        return {each.id for each in self.events if each.topic == topic}

    def broken(self, topic: str) -> set[str]:
        """Ids of events that violate the schema."""
        return {each.id for each in self.events if each.topic == topic and each.flaw}

    def valid(self, topic: str) -> set[str]:
        """Ids of events that match the schema."""
        return self.ids(topic) - self.broken(topic)

    @property
    def late(self) -> int:
        """Number of late events."""
        return sum(each.is_late for each in self.events)

    def revenue(self) -> dict[int, Revenue]:
        """Revenue by start of the window, in milliseconds. Excludes the last order, whose window
        never closes."""
        windows: dict[int, Revenue] = defaultdict(Revenue)
        for each in self._valid("orders"):
            if not each.is_closing:
                start = each.at_ms - each.at_ms % WINDOW_MS
                orders, cents = windows[start]
                windows[start] = Revenue(orders + 1, cents + each.cents)
        return dict(windows)

    def paid(self) -> set[str]:
        """Ids of orders that were paid in time."""
        ordered = {each.id: each.at_ms for each in self._valid("orders")}
        return {
            each.order_id
            for each in self._valid("payments")
            if each.order_id in ordered and 0 <= each.at_ms - ordered[each.order_id] <= PAYABLE_MS
        }

    def _valid(self, topic: str) -> Iterable[Event]:
        return (each for each in self.events if each.topic == topic and not each.flaw)


def encode_lines(events: Iterable[Event]) -> bytes:
    """Encode events as lines of JSON."""
    return b"".join(msgspec.json.encode(each) + b"\n" for each in events)


def read_ledger(path: Path) -> Ledger:
    decode = msgspec.json.Decoder(Event).decode
    return Ledger([decode(line) for line in path.read_bytes().splitlines()])
