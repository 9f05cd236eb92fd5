"""The text format, parsed by Prometheus' own parser."""

import asyncio
import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.net.http_server.endpoints import get
from tests.net.http_server.live_server import live_server

from penstock.net.http_server import Request, Route, StreamingResponse
from penstock.net.prometheus import (
    PIECE_LINES,
    Family,
    Histogram,
    Kind,
    Sample,
    exposition,
    labels,
    with_label,
)

DEPTH = Family("depth", "gauge", "Queued.", ("topic",))


def rendered(*families: tuple[Family, list[Sample]]) -> str:
    async def collected() -> bytes:
        return b"".join([piece async for piece in exposition(families).pieces])

    return asyncio.run(collected()).decode()


def test_a_page_is_written_family_by_family() -> None:
    published = Family("messages_total", "counter", "Published.")
    page = rendered(
        (published, [("", 3)]),
        (DEPTH, [(labels(topic="a"), 1), (labels(topic="b#ephemeral"), 2)]),
    )

    expected = (
        "# HELP messages_total Published.\n"
        "# TYPE messages_total counter\n"
        "messages_total 3\n"
        "# HELP depth Queued.\n"
        "# TYPE depth gauge\n"
        'depth{topic="a"} 1\n'
        'depth{topic="b#ephemeral"} 2\n'
    )
    assert expected == page


def test_any_text_can_be_a_label_or_a_help() -> None:
    text = 'a "quoted" \\ back\nslash, {brace} é'
    (family,) = text_string_to_metric_families(
        rendered(
            (
                Family("odd", "gauge", text),
                [(with_label(labels(one=text, two=""), "three", text), 1)],
            )
        )
    )

    assert text == family.documentation
    assert {"one": text, "two": "", "three": text} == family.samples[0].labels


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2**63, "9223372036854775808"),
        (True, "1"),
        (2.0, "2"),
        (0.25, "0.25"),
        (1.5e-07, "1.5e-07"),
        (-3, "-3"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, text: str) -> None:
    page = rendered((DEPTH, [("", value)]))

    assert f"depth {text}" == page.splitlines()[-1]


def test_a_histogram_counts_each_observation_in_its_bucket_and_all_above() -> None:
    histogram = Histogram((0.1, 1, 10))
    for value in (0.05, 0.1, 0.5, 10, 11):
        histogram.observe(value)
    family = Family("took_seconds", "histogram", "Taken.")
    (read,) = text_string_to_metric_families(rendered((family, list(histogram.samples()))))

    assert "histogram" == read.type
    buckets = {each.labels["le"]: each.value for each in read.samples if "le" in each.labels}
    assert {"0.1": 2, "1": 3, "10": 4, "+Inf": 5} == buckets
    assert {"took_seconds_sum": 21.65, "took_seconds_count": 5} == {
        each.name: each.value for each in read.samples if "le" not in each.labels
    }


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [
        ("messages", "counter", "topic"),
        ("depth_total", "gauge", "topic"),
        ("Depth", "gauge", "topic"),
        ("depth", "gauge", "Topic"),
        ("latency_seconds", "gauge", "quantile"),
        ("latency_seconds", "summary", "topic"),
    ],
)
def test_declarations_that_prometheus_forbids_are_assertion_errors(
    name: str, kind: Kind, label: str
) -> None:
    with pytest.raises(AssertionError):
        Family(name, kind, "", (label,))


def test_a_large_page_is_rendered_in_pieces_as_it_is_sent() -> None:
    """The server lets other tasks run after each piece."""
    drawn = 0

    def depths() -> Iterator[Sample]:
        nonlocal drawn
        for drawn in range(5 * PIECE_LINES):
            yield labels(topic=str(drawn)), drawn

    async def drawn_with_each_piece() -> list[int]:
        return [drawn async for _ in exposition([(DEPTH, depths())]).pieces]

    steps = asyncio.run(drawn_with_each_piece())

    assert [PIECE_LINES] * 4 == [after - before for before, after in pairwise(steps[:5])]


def test_a_page_is_served() -> None:
    def metrics(_: Request) -> StreamingResponse:
        return exposition([(DEPTH, [(labels(topic="a"), 1)])])

    with live_server([Route("GET", "/metrics", metrics)]) as server, server.connect() as client:
        client.send(get("/metrics", "Connection: close"))
        page = client.read_all()

    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in page
    assert b'depth{topic="a"} 1\n' in page
