"""Definitions of streams: defaults, and errors found without Spark."""

from pathlib import Path
from typing import Any

import pytest

from penstock.common.errors import ConfigError
from penstock.pipelines.stream_definition import (
    EventTime,
    SinkDefinition,
    channel_name,
    load_definition,
    parse_definition,
)

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "stream.toml"


def definition_data(**changes: Any) -> dict[str, Any]:
    """A valid definition with these changes."""
    return {
        "sources": {"orders": {"schema": "id STRING, ts TIMESTAMP"}},
        "queries": {"large": "SELECT * FROM orders"},
        "sinks": {"large": {"topic": "orders.large"}},
        **changes,
    }


def test_the_example_is_valid() -> None:
    shop = load_definition(str(SHOP))

    assert "shop.checkpoint" == shop.checkpoint
    assert ["orders", "payments", "clicks"] == [each.topic for each in shop.sources.values()]
    assert EventTime("ts", "2 minutes") == shop.sources["orders"].event_time
    assert SinkDefinition(query="revenue", topic="revenue") == shop.sinks["revenue"]
    assert "10 seconds" == shop.sinks["pages"].interval
    assert "shop.revenue" == channel_name(shop, "revenue")


def test_an_explicit_checkpoint_overrides_the_file() -> None:
    assert "elsewhere" == load_definition(str(SHOP), "elsewhere").checkpoint


def test_dependencies_of_a_query_are_transitive() -> None:
    """They exclude later queries and unused sources."""
    definition = parse_definition(
        definition_data(
            sources={"orders": {}, "payments": {}, "clicks": {}},
            queries={
                "one": "SELECT 1 FROM Orders",
                "two": "SELECT 2 FROM one JOIN payments",
                "large": "SELECT 3 FROM two",
            },
        )
    )

    assert ["orders", "payments"] == list(definition.dependencies_of("two").sources)
    assert ["one", "two"] == list(definition.dependencies_of("two").queries)
    assert ["clicks"] == list(definition.dependencies_of("clicks").sources)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sorces": {}}, "unknown key 'sorces': did you mean 'sources'?"),
        ({"sources": {}}, r"no source: add \[sources.NAME\]"),
        ({"sources": 5}, r"sources must be a table, \[sources\]"),
        (
            {"sources": {"orders": {"watermrak": "ts, 1m"}}},
            "sources.orders: unknown key 'watermrak': did you mean 'watermark'?",
        ),
        ({"sources": {"orders": {"topic": 5}}}, "sources.orders: topic: expected str, got int"),
        ({"sources": {"orders": {"topic": "a b"}}}, "topic 'a b' is not a valid name"),
        ({"sources": {"orders": {"watermark": "ts"}}}, "watermark must be like 'ts, 10 minutes'"),
        ({"sources": {"orders": {"watermark": "ts, soon"}}}, "'10m', not 'soon'"),
        ({"sources": {"orders": {"rejects": "bad"}}}, "rejects requires a schema"),
        ({"sources": {"or-ders": {}}}, "sources.or-ders: not a valid SQL identifier"),
        ({"queries": {"Orders": "SELECT 1"}}, "have the same name: orders and Orders"),
        ({"queries": {"large": " ; "}}, "queries.large: the SQL is empty"),
        ({"queries": {"large": {"sql": "x"}}}, "queries.large: expected str, got object"),
        ({"sinks": {"large": {}}}, "sinks.large: exactly one of topic and path is required"),
        (
            {"sinks": {"out": {"from": "lrage", "topic": "x"}}},
            "sinks.out: no source or query 'lrage': did you mean 'large'?",
        ),
        ({"sinks": {"large": {"path": "x", "format": "xml"}}}, "parquet, json or csv, not 'xml'"),
        ({"sinks": {"large": {"path": "x", "mode": "update"}}}, "can only be appended to"),
        (
            {"sinks": {"large": {"topic": "x", "trigger": "now"}}},
            "trigger must be like .*, not 'now'",
        ),
        ({"sinks": {"large": {"topic": "x", "partition_by": "a"}}}, "are for files"),
        ({"sinks": {"large": {"topic": "orders"}}}, "writes to its own source, topic orders"),
        ({"name": "x" * 60}, "sinks.large: 'x+.large' is too long for a channel"),
    ],
)
def test_invalid_definitions_are_rejected(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_definition(definition_data(**changes))


def test_an_invalid_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("[sources\n")

    with pytest.raises(ConfigError, match=r"shop.toml: .*line 1"):
        load_definition(str(file))
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml - No such file"):
        load_definition(str(tmp_path / "none.toml"))
