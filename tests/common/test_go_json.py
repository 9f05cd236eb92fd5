"""JSON as Go 1.19's encoding/json writes and reads it, and typed decoding."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.go_json import (
    as_bool,
    as_int32,
    as_int64,
    as_string,
    decode_json,
    read_fields,
    to_json,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-12, "-12"),
        (2**63 - 1, "9223372036854775807"),
        ("", '""'),
        ("a b", '"a b"'),
        ("é😀", '"é😀"'),
        ('"\\/', '"\\"\\\\/"'),
        ("<a & b>", '"\\u003ca \\u0026 b\\u003e"'),
        ("\n\r\t", '"\\n\\r\\t"'),
        ("\b\f\x00\x1f\x7f", '"\\u0008\\u000c\\u0000\\u001f\x7f"'),
        ("\\b\\f", '"\\\\b\\\\f"'),
        ("\\\b", '"\\\\\\u0008"'),
        ("\u2028\u2029", '"\\u2028\\u2029"'),
        ("\ud800x", '"\ufffdx"'),
        ([], "[]"),
        ((1, 2), "[1,2]"),
        ({}, "{}"),
        ({"b": 1, "a": [None, {}]}, '{"b":1,"a":[null,{}]}'),
        ({"<": "&"}, '{"\\u003c":"\\u0026"}'),
        ({"\ud800": ["\udfff"]}, '{"\ufffd":["\ufffd"]}'),
    ],
)
def test_values_are_written_as_go_writes_them(value: object, expected: str) -> None:
    assert expected.encode() == to_json(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (0.99, "0.99"),
        (100.0, "100"),
        (123456789.0, "123456789"),
        (1.5e9, "1500000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.25e21, "1.25e+21"),
        (1e100, "1e+100"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (1.5e-9, "1.5e-9"),
        (1e-10, "1e-10"),
        (5e-324, "5e-324"),
        (-2.5, "-2.5"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_floats_are_written_as_go_writes_them(value: float, expected: str) -> None:
    assert expected.encode() == to_json(value)
    assert f'{{"a":[{expected}]}}'.encode() == to_json({"a": [value]})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_json_cannot_represent_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON has no"):
        to_json([value])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_written_values_read_back_the_same(value: object) -> None:
    written = to_json(value)

    assert value == json.loads(written)
    assert not set(b"<>&") & set(written)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_the_same(value: float) -> None:
    assert value == float(to_json(value))


def test_keys_keep_their_order_and_html_is_escaped() -> None:
    assert b'{"b":"\\u003c\\u003e\\u0026\xc3\xbc","a":1}' == to_json({"b": "<>&ü", "a": 1})


# Reading into a struct ----------------------------------------------------------------------------

FIELDS = {"name": as_string, "on": as_bool, "small": as_int32, "large": as_int64}

GOOD: list[tuple[bytes, dict[str, object]]] = [
    (b"null", {}),
    (b"{}", {}),
    (b' {"name" : "x"} \n', {"name": "x"}),
    (b'{"NAME":"x","On":true}', {"name": "x", "on": True}),
    (b'{"name":"x","name":"y"}', {"name": "y"}),
    (b'{"name":"x","name":null}', {"name": "x"}),
    (b'{"other":[1.5,{"name":2}]}', {}),
    (b'{"small":-2147483648,"large":9223372036854775807}', {"small": -(2**31), "large": 2**63 - 1}),
    (b'{"name":"\xff\\ud800"}', {"name": "\ufffd\ufffd"}),
    ('{"\u017fmall":1}'.encode(), {"small": 1}),
]

BAD = [
    b"",
    b"{",
    b"[]",
    b'"name"',
    b'{"name":1}',
    b'{"name":1,"name":"x"}',
    b'{"on":1}',
    b'{"small":true}',
    b'{"small":1.0}',
    b'{"small":1e3}',
    b'{"small":2147483648}',
    b'{"large":9223372036854775808}',
    b'{"large":"1"}',
    b'{"other":NaN}',
    b'{"other":' + b"[" * 100_000,
]


@pytest.mark.parametrize(("body", "expected"), GOOD)
def test_structs_are_read_as_in_go(body: bytes, expected: dict[str, object]) -> None:
    assert expected == read_fields(body, FIELDS)


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:30].decode())
def test_invalid_structs_are_rejected_as_in_go(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_fields(body, FIELDS)


# Typed decoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'["a"', "truncated"),
        (b"[1]", "Expected `str`, got `int`"),
        (b'["\xff"]', "not UTF-8"),
    ],
)
def test_invalid_json_raises_value_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_json(data, list[str])


def test_too_deep_nesting_raises_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        decode_json(b"[" * 100_000, list[object])


def test_valid_json_is_decoded() -> None:
    assert ["\N{SNOWMAN}"] == decode_json(b'["\xe2\x98\x83"]', list[str])
