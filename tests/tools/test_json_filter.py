"""Which messages pass, and what of them."""

import pytest

from penstock.tools.json_filter import JsonFilter, NotJson, Unfit


@pytest.mark.parametrize(
    ("filter_", "body", "expected"),
    [
        (JsonFilter(), b"no json at all", b"no json at all"),
        # A field that must be there.
        (JsonFilter("a"), b'{"a": null, "b": 1}', b'{"a": null, "b": 1}'),
        (JsonFilter("a"), b'{"b": 1}', None),
        (JsonFilter("a"), b"null", None),
        (JsonFilter("a"), b'{"b": {"a": 1}}', None),
        # And its value.
        (JsonFilter("a", "x"), b'{"a":"x"}', b'{"a":"x"}'),
        (JsonFilter("a", "x"), b'{"a":"y"}', None),
        (JsonFilter("a", "1"), b'{"a":1}', b'{"a":1}'),
        (JsonFilter("a", "1"), b'{"a":"1"}', b'{"a":"1"}'),
        (JsonFilter("a", "1"), b'{"a":1.0}', b'{"a":1.0}'),
        (JsonFilter("a", "1"), b'{"a":true}', None),
        (JsonFilter("a", "1e2"), b'{"a":100}', b'{"a":100}'),
        (JsonFilter("a", "9007199254740993"), b'{"a":9007199254740993}', b'{"a":9007199254740993}'),
        (JsonFilter("a", "x"), b'{"a":1}', None),
        (JsonFilter("a", "x"), b'{"a":{"x":1}}', None),
        (JsonFilter("a", "x"), b'{"a":null}', None),
        (JsonFilter("a", "1_0"), b'{"a":10}', None),
        (JsonFilter("a", " 1"), b'{"a":1}', None),
        # Only certain fields.
        (JsonFilter(whitelist=["b", "a"]), b'{"c":1,"b":2,"a":3}', b'{"a":3,"b":2}'),
        (JsonFilter(whitelist=["a"]), b'{"b":2}', b"{}"),
        (JsonFilter(whitelist=["a"]), b"null", b"{}"),
        (JsonFilter(whitelist=["a"]), b'{"a":1.50e1}', b'{"a":1.50e1}'),
        (JsonFilter(whitelist=["a"]), b'{"a":{"z":1,"y":[]}}', b'{"a":{"z":1,"y":[]}}'),
        (JsonFilter("a", "x", ["b"]), b'{"a":"x","b":2}', b'{"b":2}'),
        # Bytes that are not UTF-8, and half a surrogate pair, are replaced where they are compared.
        (JsonFilter("a"), b'{"a":"\xff"}', b'{"a":"\xff"}'),
        (JsonFilter("a"), rb'{"a":"\ud83d"}', rb'{"a":"\ud83d"}'),
        (JsonFilter("a", "\ufffdA"), rb'{"a":"\uD800\u0041"}', rb'{"a":"\uD800\u0041"}'),
        (JsonFilter("a", "\U0001f600"), rb'{"a":"\ud83d\ude00"}', rb'{"a":"\ud83d\ude00"}'),
        (JsonFilter("a", "\\ud800"), rb'{"a":"\\ud800"}', rb'{"a":"\\ud800"}'),
    ],
)
def test_what_passes(filter_: JsonFilter, body: bytes, expected: bytes | None) -> None:
    assert expected == filter_.filter(body)


@pytest.mark.parametrize(
    "filter_", [JsonFilter("a"), JsonFilter("a", "1"), JsonFilter("", "", "a")]
)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"abc", b'{"a":1', b"{a:1}", b'{"a":01}', b"[" * 100_000),
        # Valid, but not an object.
        *(b"[]", b'["a"]', b'[{"a":1}]', b"1", b'"a"', b"true"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(filter_: JsonFilter, body: bytes) -> None:
    with pytest.raises(NotJson, match="Unable to decode json"):
        filter_.filter(body)


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"b":1}'])
def test_an_object_without_the_field_of_a_required_value_is_a_failure(body: bytes) -> None:
    with pytest.raises(Unfit, match="missing field 'a' to check required value"):
        JsonFilter("a", "1").filter(body)
