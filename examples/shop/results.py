"""Results of the demo in the lake, topics and files, read without Spark.

Parquet files are read by Arrow, topics from nsqd's history. Duplicates appear twice, with the same
id.
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

__all__ = ["DemoPaths", "Ids", "PipelineResults", "paid_orders", "read_results", "revenue"]

Ids = Counter[str]
"""Ids of events with their number of occurrences."""


class DemoPaths(msgspec.Struct, frozen=True):
    """Locations of the results. The demo stores them in `demo.json` in its folder."""

    folder: str
    nsqds: list[str]
    """HTTP addresses."""

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
class PipelineResults:
    """Results of the demo's jobs."""

    archived: Mapping[str, Ids]
    """Archived messages, by topic."""
    rejected: Mapping[str, Ids]
    """Messages rejected by the archive, by topic."""
    windows: Mapping[int, Revenue]
    paid: Ids
    rejected_by_stream: Ids
    """Orders rejected by the stream."""
    clicks: Ids
    replayed: Ids


def read_results(paths: DemoPaths) -> PipelineResults:
    """Raises LakeError or HttpRequestError if a result does not exist."""
    lake = Lake.open(paths.lake)
    folders = {topic: lake.existing_topic(topic) for topic in TOPICS}
    return PipelineResults(
        archived={topic: _ids_in_files(folder.files()) for topic, folder in folders.items()},
        rejected={
            topic: _ids_in_files(folder.rejected_files()) for topic, folder in folders.items()
        },
        windows=revenue(paths.nsqds),
        paid=paid_orders(paths.nsqds),
        rejected_by_stream=_ids(_bodies(paths.nsqds, "orders.rejected")),
        clicks=Counter(
            click_id
            for file in paths.pages.glob("day=*/*.parquet")
            for click_id in _values(file, "click_id")
        ),
        replayed=_ids(_bodies(paths.nsqds, "orders.again")),
    )


class _Window(msgspec.Struct, frozen=True):
    """A row of the query `revenue`."""

    start: datetime
    end: datetime
    orders: int
    amount: Decimal


def revenue(nsqds: Sequence[str]) -> dict[int, Revenue]:
    """Revenue by start of the window, in milliseconds. Equal rows are duplicates. Different rows of
    one window would mean that it was published too early; these are summed."""
    decode = msgspec.json.Decoder(_Window).decode
    windows: dict[int, Revenue] = {}
    for row in {decode(body) for body in _bodies(nsqds, "revenue")}:
        start_ms = round(row.start.timestamp() * 1000)
        before = windows.get(start_ms, Revenue())
        cents = int(row.amount * 100)
        windows[start_ms] = Revenue(before.orders + row.orders, before.cents + cents)
    return windows


def paid_orders(nsqds: Sequence[str]) -> Ids:
    """Orders that the stream joined with a payment."""
    return _ids(_bodies(nsqds, "orders.paid"))


def _bodies(nsqds: Sequence[str], topic: str) -> Iterator[bytes]:
    return (message.body_bytes for message in read_history(nsqds, topic, start="earliest"))


def _ids_in_files(files: Iterable[Path]) -> Ids:
    return _ids(body for file in files for body in _values(file, "body"))


def _values(file: Path, column: str) -> list[Any]:
    # Reads the file alone, without partition columns from the folder name.
    values: list[Any] = parquet.ParquetFile(file).read([column]).column(0).to_pylist()
    return values


def _ids(bodies: Iterable[bytes]) -> Ids:
    return Counter(maybe_id_of(body) or f"no id: {body[:40]!r}" for body in bodies)
