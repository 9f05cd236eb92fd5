from enum import IntEnum
from typing import Any

import pytest

from penstock.common.logs import LogLevel
from penstock.common.option_types import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    OptionType,
    enum_type,
    join_alternatives,
)


class Colour(IntEnum):
    RED = 7
    BLUE = 8


COLOUR = enum_type({"red": Colour.RED, "rouge": Colour.RED, "blue": Colour.BLUE})


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *((BOOL, text, True) for text in ("1", "t", "T", "TRUE", "true", "True")),
        *((BOOL, text, False) for text in ("0", "f", "F", "FALSE", "false", "False")),
        (INT, "0", 0),
        (INT, "-5", -5),
        (INT, "+5", 5),
        (INT, "0x1F", 31),
        (INT, "-0x1f", -31),
        (INT, "0b101", 5),
        (INT, "0o17", 15),
        (INT, "017", 15),
        (INT, "1_000", 1000),
        (INT, "9223372036854775807", 2**63 - 1),
        (INT, "-9223372036854775808", -(2**63)),
        (DURATION, "1m30s", 90_000_000_000),
        (STRING, "", ""),
        (STRING, "a,b", "a,b"),
        (STRINGS, "a,b", ("a,b",)),
        (FLOAT, "0.25", 0.25),
        (FLOATS, "0.5", (0.5,)),
        (FLOATS, "0.5,0.99,0.95", (0.99, 0.95, 0.5)),
        (LOG_LEVEL, "debug", LogLevel.DEBUG),
        (LOG_LEVEL, "WARN", LogLevel.WARN),
        (COLOUR, "Rouge", Colour.RED),
    ],
)
def test_flags_are_read_as_go_reads_them(
    kind: OptionType[Any], text: str, expected: object
) -> None:
    assert expected == kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        *((BOOL, text, "parse error") for text in ("", "yes", "on", "tRUE", "2")),
        *((INT, text, "parse error") for text in ("", " 1", "1 ", "1.5", "1k", "0x", "09", "1__0")),
        (INT, "\N{ARABIC-INDIC DIGIT THREE}", "parse error"),
        (INT, "9223372036854775808", "value out of range"),
        (DURATION, "60", "parse error"),
        (DURATION, "soon", "parse error"),
        (FLOAT, "half", "parse error"),
        (FLOATS, "0.5;0.9", "parse error"),
        (FLOATS, "", "parse error"),
        (LOG_LEVEL, "loud", "must be debug, info, warn, error or fatal"),
        (LOG_LEVEL, "warning", "must be debug, info, warn, error or fatal"),
        (COLOUR, "", "must be red or blue"),
    ],
)
def test_bad_flags_are_refused(kind: OptionType[Any], text: str, expected: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the text is compared whole)
        kind.parse(text)

    assert expected == str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (BOOL, True, True),
        (BOOL, "f", False),
        (BOOL, 0, True),
        (BOOL, 1, False),
        (INT, 12, 12),
        (INT, "12", 12),
        (DURATION, 1500, 1_500_000_000),
        (DURATION, "1.5s", 1_500_000_000),
        (STRING, "x", "x"),
        (STRINGS, ["a", "b"], ("a", "b")),
        (STRINGS, "a,b", ("a", "b")),
        (STRINGS, [], ()),
        (FLOATS, [0.5, 1], (1.0, 0.5)),
        (FLOATS, "0.5, 0.99", (0.99, 0.5)),
        (FLOAT, 1, 1.0),
        (LOG_LEVEL, "Error", LogLevel.ERROR),
        (enum_type({"1": Colour.RED, "true": Colour.BLUE}), 1, Colour.RED),
        (enum_type({"1": Colour.RED, "true": Colour.BLUE}), True, Colour.BLUE),
    ],
)
def test_config_values_are_accepted_in_every_allowed_form(
    kind: OptionType[Any], value: object, expected: object
) -> None:
    assert expected == kind.from_config(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (BOOL, 1.0),
        (BOOL, "maybe"),
        (BOOL, []),
        (INT, True),
        (INT, 1.5),
        (INT, "0x10"),
        (INT, 2**63),
        (DURATION, True),
        (DURATION, 1.5),
        (DURATION, "60"),
        (DURATION, 2**62),
        (STRING, 1),
        (STRINGS, ["a", 1]),
        (STRINGS, 1),
        (FLOAT, "0.5"),
        (FLOAT, True),
        (FLOATS, ["a"]),
        (FLOATS, [True]),
        (FLOATS, 0.5),
        (LOG_LEVEL, 2),
        (LOG_LEVEL, []),
    ],
)
def test_config_values_of_a_wrong_kind_are_refused(kind: OptionType[Any], value: object) -> None:
    with pytest.raises(ValueError, match=r"must be|duration|value out of range|parse error"):
        kind.from_config(value)


@pytest.mark.parametrize(
    ("kind", "value", "shown", "json"),
    [
        (BOOL, True, "true", True),
        (INT, 5, "5", 5),
        (DURATION, 90_000_000_000, "1m30s", 90_000_000_000),
        (STRING, "x", "x", "x"),
        (STRINGS, ("a", "b"), "a, b", ["a", "b"]),
        (STRINGS, (), "", []),
        (FLOAT, 0.5, "0.5", 0.5),
        (FLOATS, (0.99, 0.5), "0.99, 0.5", [0.99, 0.5]),
        (FLOATS, (), "", []),
        (LOG_LEVEL, LogLevel.WARN, "warn", 3),
        (COLOUR, Colour.RED, "red", 7),
    ],
)
def test_values_are_shown(kind: OptionType[Any], value: object, shown: str, json: object) -> None:
    assert shown == kind.show(value)
    assert json == kind.to_json(value)
    assert type(json) is type(kind.to_json(value))


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")],
)
def test_listings_read_as_english(words: list[str], expected: str) -> None:
    assert expected == join_alternatives(words)
