r"""Metrics, as Prometheus reads them: its text format, version 0.0.4.

    QUEUED = Family("nsqd_channel_depth", "gauge", "Messages queued.", ("topic", "channel"))

    def metrics(request: Request) -> Streaming:
        return exposition([(QUEUED, ((labels(topic="t", channel="c"), 7),))])

A family is declared once, as data, from which its page of the documentation is checked as well. A
sample is its number and what stands between the family's name and that number: its labels, which
are rendered once and serve every family that has the same ones. Samples are drawn while the answer
is sent, a piece at a time, so that a page of a hundred thousand lines holds nobody up; whoever
provides them must bear that the world moves on in between.
"""

import math
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.net.http_server.responses import Streaming

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

# As many lines are rendered without letting others run: about a millisecond's worth.
PIECE_LINES = 512

Kind = Literal["counter", "gauge", "histogram", "summary"]

# What follows the name, and the value.
Sample = tuple[str, float]

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. As Prometheus wants it, a counter's name ends in `_total`, and only
    a summary has a label `quantile`."""

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
        """The lines before the samples."""
        about = self.help.translate(_ESCAPED_IN_HELP)
        return f"# HELP {self.name} {about}\n# TYPE {self.name} {self.kind}\n"


class Histogram:
    """Counts observations by size; what it observes is not below zero."""

    __slots__ = ("_bounds", "_counts", "_labels", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the largest values of the buckets, in order; one more takes all others."""
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
        """The buckets, each with all that is in those before it, and the sum and the count."""
        so_far = 0
        for label, count in zip(self._labels, self._counts, strict=True):
            so_far += count
            yield label, so_far
        yield "_sum", self._sum
        yield "_count", so_far


def labels(**values: str) -> str:
    """Labels as they follow a family's name."""
    pairs = [f'{name}="{value.translate(_ESCAPED_IN_LABELS)}"' for name, value in values.items()]
    return "{" + ",".join(pairs) + "}"


def with_label(labelled: str, name: str, value: str) -> str:
    """The same labels and one more: faster, where many share theirs, than rendering all anew."""
    return f'{labelled[:-1]},{name}="{value.translate(_ESCAPED_IN_LABELS)}"}}'


def exposition(families: Iterable[tuple[Family, Iterable[Sample]]]) -> Streaming:
    """The answer to a scrape."""
    return Streaming(_pieces(_lines(families)), headers=(("Content-Type", CONTENT_TYPE),))


def _lines(families: Iterable[tuple[Family, Iterable[Sample]]]) -> Iterator[str]:
    for family, samples in families:
        yield family.head
        name = family.name
        for labelled, value in samples:
            yield f"{name}{labelled} {value if type(value) is int else _number(value)}\n"


async def _pieces(lines: Iterator[str]) -> AsyncIterator[bytes]:
    """The outbox lets others run after each."""
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if len(piece) == PIECE_LINES:
            yield "".join(piece).encode()
            piece.clear()
    yield "".join(piece).encode()


def _number(value: float) -> str:
    """A number as Go would parse it back."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else str(int(value) if value == int(value) else value)
