"""JSON as Go reads it into a struct."""

import pytest

from penstock.common.go_struct import (
    as_bool,
    as_int32,
    as_int64,
    as_string,
    read_fields,
    write_fields,
)

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
def test_what_go_understands(body: bytes, expected: dict[str, object]) -> None:
    assert expected == read_fields(body, FIELDS)


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:30].decode())
def test_what_go_does_not_understand(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_fields(body, FIELDS)


def test_what_is_written_has_no_spaces_and_goes_into_html() -> None:
    assert b'{"b":"\\u003c\\u003e\\u0026\xc3\xbc","a":1}' == write_fields({"b": "<>&ü", "a": 1})
