"""What a stream is told: what goes without saying, and what is wrong before Spark is asked."""

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


def told(**changes: Any) -> dict[str, Any]:
    """Something that is right, but for the changes."""
    return {
        "sources": {"orders": {"schema": "id STRING, ts TIMESTAMP"}},
        "queries": {"large": "SELECT * FROM orders"},
        "sinks": {"large": {"topic": "orders.large"}},
        **changes,
    }


def test_the_example_is_right() -> None:
    shop = load_definition(str(SHOP))

    assert "shop.checkpoint" == shop.checkpoint
    assert ["orders", "payments", "clicks"] == [each.topic for each in shop.sources.values()]
    assert EventTime("ts", "2 minutes") == shop.sources["orders"].event_time
    assert SinkDefinition(query="revenue", topic="revenue") == shop.sinks["revenue"]
    assert "10 seconds" == shop.sinks["pages"].interval
    assert "shop.revenue" == channel_name(shop, "revenue")


def test_a_checkpoint_that_is_named_wins() -> None:
    assert "elsewhere" == load_definition(str(SHOP), "elsewhere").checkpoint


def test_a_query_needs_what_it_names_and_what_that_names() -> None:
    """But not what comes after it, nor sources that nobody names."""
    definition = parse_definition(
        told(
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
    ("changes", "complaint"),
    [
        ({"sorces": {}}, "unknown key 'sorces': did you mean 'sources'?"),
        ({"sources": {}}, r"there is no source: \[sources.NAME\]"),
        ({"sources": 5}, r"sources: a table is wanted, \[sources\]"),
        (
            {"sources": {"orders": {"watermrak": "ts, 1m"}}},
            "sources.orders: unknown key 'watermrak': did you mean 'watermark'?",
        ),
        ({"sources": {"orders": {"topic": 5}}}, "sources.orders: topic: expected str, got int"),
        ({"sources": {"orders": {"topic": "a b"}}}, "topic 'a b' is no name for a topic"),
        ({"sources": {"orders": {"watermark": "ts"}}}, "watermark is like 'ts, 10 minutes'"),
        ({"sources": {"orders": {"watermark": "ts, soon"}}}, "'soon' is no time such as"),
        ({"sources": {"orders": {"rejects": "bad"}}}, "does not fit a schema, and there is none"),
        ({"sources": {"or-ders": {}}}, "sources.or-ders: not a name that SQL can use"),
        ({"queries": {"Orders": "SELECT 1"}}, "have one name: orders and Orders"),
        ({"queries": {"large": " ; "}}, "queries.large: there is no SQL"),
        ({"queries": {"large": {"sql": "x"}}}, "queries.large: expected str, got object"),
        ({"sinks": {"large": {}}}, "sinks.large: one of topic and path has to be given"),
        (
            {"sinks": {"out": {"from": "lrage", "topic": "x"}}},
            "sinks.out: there is no source or query 'lrage': did you mean 'large'?",
        ),
        ({"sinks": {"large": {"path": "x", "format": "xml"}}}, "parquet, json or csv, not 'xml'"),
        ({"sinks": {"large": {"path": "x", "mode": "update"}}}, "can only be appended to"),
        ({"sinks": {"large": {"topic": "x", "trigger": "now"}}}, "trigger: 'now' is no time"),
        ({"sinks": {"large": {"topic": "x", "partition_by": "a"}}}, "are for files"),
        ({"sinks": {"large": {"topic": "orders"}}}, "read what it writes: topic orders"),
        ({"name": "x" * 60}, "sinks.large: 'x+.large' is too long for a channel"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_definition(told(**changes))


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("[sources\n")

    with pytest.raises(ConfigError, match=r"shop.toml: .*line 1"):
        load_definition(str(file))
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml - No such file"):
        load_definition(str(tmp_path / "none.toml"))
