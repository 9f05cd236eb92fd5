"""What is there in the end: in the lake, in topics, and in files. Read without Spark.

What Spark has written is looked at by other means than Spark's: Parquet by Arrow, topics by nsqd's
history. What was stored twice is there twice, under one id.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from examples.shop.events import TOPICS, maybe_id_of
from examples.shop.ledger import Revenue
from pyarrow import parquet

from penstock.pipelines.lake import Lake
from penstock.tools.history import read_history

__all__ = ["Found", "Ids", "Places", "look", "paid_orders", "revenue"]

Ids = Counter[str]
"""The ids of events, and how many times each is there."""


class Places(msgspec.Struct, frozen=True):
    """Where to look. The demo leaves it in its folder, as `demo.json`."""

    folder: str
    nsqds: list[str]
    """Their HTTP addresses."""

    @property
    def lake(self) -> Path:
        return Path(self.folder) / "lake"

    @property
    def pages(self) -> Path:
        return Path(self.folder) / "pages"

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / "ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that the demo's jobs have made of the events."""

    archived: Mapping[str, Ids]
    """By topic: what the lake has as messages."""
    rejected: Mapping[str, Ids]
    """And what it keeps aside."""
    windows: Mapping[int, Revenue]
    paid: Ids
    set_aside: Ids
    """What the stream did not take for orders."""
    clicks: Ids
    replayed: Ids


def look(places: Places) -> Found:
    """Raises LakeError or HttpRequestError if something is not there at all."""
    lake = Lake.open(places.lake)
    folders = {topic: lake.existing_topic(topic) for topic in TOPICS}
    return Found(
        archived={topic: _ids_in_files(folder.files()) for topic, folder in folders.items()},
        rejected={
            topic: _ids_in_files(folder.rejected_files()) for topic, folder in folders.items()
        },
        windows=revenue(places.nsqds),
        paid=paid_orders(places.nsqds),
        set_aside=_ids(_bodies(places.nsqds, "orders.rejected")),
        clicks=Counter(
            click_id
            for file in places.pages.glob("day=*/*.parquet")
            for click_id in _values(file, "click_id")
        ),
        replayed=_ids(_bodies(places.nsqds, "orders.again")),
    )


class _Window(msgspec.Struct, frozen=True):
    """A row of the query `revenue`."""

    start: datetime
    end: datetime
    orders: int
    amount: Decimal


def revenue(nsqds: Sequence[str]) -> dict[int, Revenue]:
    """By a window's start. A row that is published twice is the same both times; two that are
    not the same would be a window that was published before its end, and are added up."""
    decode = msgspec.json.Decoder(_Window).decode
    windows: dict[int, Revenue] = {}
    for row in {decode(body) for body in _bodies(nsqds, "revenue")}:
        start_ms = round(row.start.timestamp() * 1000)
        before = windows.get(start_ms, Revenue())
        cents = int(row.amount * 100)
        windows[start_ms] = Revenue(before.orders + row.orders, before.cents + cents)
    return windows


def paid_orders(nsqds: Sequence[str]) -> Ids:
    """The orders that the join has found a payment for."""
    return _ids(_bodies(nsqds, "orders.paid"))


def _bodies(nsqds: Sequence[str], topic: str) -> Iterator[bytes]:
    return (message.body_bytes for message in read_history(nsqds, topic, start="earliest"))


def _ids_in_files(files: Iterable[Path]) -> Ids:
    return _ids(body for file in files for body in _values(file, "body"))


def _values(file: Path, column: str) -> list[Any]:
    # As a file by itself: what its folder's name says is no column of it.
    values: list[Any] = parquet.ParquetFile(file).read([column]).column(0).to_pylist()
    return values


def _ids(bodies: Iterable[bytes]) -> Ids:
    return Counter(maybe_id_of(body) or f"no id: {body[:40]!r}" for body in bodies)
