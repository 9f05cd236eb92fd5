r"""Metrics in the text format of Prometheus, version 0.0.4.

    QUEUED = Family("nsqd_channel_depth", "gauge", "Messages queued.", ("topic", "channel"))

    def metrics(request: Request) -> StreamingResponse:
        return exposition([(QUEUED, ((labels(topic="t", channel="c"), 7),))])

A family is declared once, as data; a test compares the declarations with the documentation. A
sample is a number and its rendered labels, which families with the same labels share. Samples are
taken piece by piece while the response is sent, so that a page of a hundred thousand lines does not
block the event loop. Iterables of samples must therefore tolerate changes between two samples.
"""

import math
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.net.http_server import StreamingResponse

__all__ = [
    "CONTENT_TYPE",
    "Family",
    "Histogram",
    "Kind",
    "Sample",
    "exposition",
    "labels",
    "with_label",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Lines that are rendered in one turn of the event loop: about a millisecond.
PIECE_LINES = 512

Kind = Literal["counter", "gauge", "histogram", "summary"]

# Labels, as they follow the name, and the value.
Sample = tuple[str, float]

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. Prometheus requires that only a counter's name ends in `_total`, and
    that only a summary has a label `quantile`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert all(_NAME.fullmatch(label) for label in self.labels), self.labels
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name
        assert (self.kind == "summary") == ("quantile" in self.labels), self.name

    @property
    def head(self) -> str:
        """The HELP and TYPE lines."""
        help_text = self.help.translate(_ESCAPED_IN_HELP)
        return f"# HELP {self.name} {help_text}\n# TYPE {self.name} {self.kind}\n"


class Histogram:
    """Counts non-negative observations in buckets."""

    __slots__ = ("_bounds", "_counts", "_labels", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds of the buckets, in ascending order; `+Inf` is added."""
        assert list(bounds) == sorted(bounds)
        self._bounds: Final = tuple(bounds)
        self._labels: Final = [f'_bucket{{le="{_number(bound)}"}}' for bound in (*bounds, math.inf)]
        self._counts = [0] * len(self._labels)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        """The cumulative buckets, the sum and the count."""
        cumulated = 0
        for label, count in zip(self._labels, self._counts, strict=True):
            cumulated += count
            yield label, cumulated
        yield "_sum", self._sum
        yield "_count", cumulated


def labels(**values: str) -> str:
    """Renders labels in braces, to be appended to the name of a metric."""
    pairs = [f'{name}="{value.translate(_ESCAPED_IN_LABELS)}"' for name, value in values.items()]
    return "{" + ",".join(pairs) + "}"


def with_label(rendered_labels: str, name: str, value: str) -> str:
    """Adds one label to rendered labels: faster than rendering all of them again."""
    return f'{rendered_labels[:-1]},{name}="{value.translate(_ESCAPED_IN_LABELS)}"}}'


def exposition(families: Iterable[tuple[Family, Iterable[Sample]]]) -> StreamingResponse:
    """The response to a scrape."""
    return StreamingResponse(_pieces(_lines(families)), headers=(("Content-Type", CONTENT_TYPE),))


def _lines(families: Iterable[tuple[Family, Iterable[Sample]]]) -> Iterator[str]:
    for family, samples in families:
        yield family.head
        name = family.name
        for rendered_labels, value in samples:
            yield f"{name}{rendered_labels} {value if type(value) is int else _number(value)}\n"


async def _pieces(lines: Iterator[str]) -> AsyncIterator[bytes]:
    """The server lets other tasks run after each piece."""
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if len(piece) == PIECE_LINES:
            yield "".join(piece).encode()
            piece.clear()
    yield "".join(piece).encode()


def _number(value: float) -> str:
    """A number in the syntax of Go's ParseFloat."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else str(int(value) if value == int(value) else value)
