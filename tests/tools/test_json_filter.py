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
        (JsonFilter("a"), b'["a"]', None),
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
        # Only certain fields.
        (JsonFilter(whitelist=["b", "a"]), b'{"c":1,"b":2,"a":3}', b'{"a":3,"b":2}'),
        (JsonFilter(whitelist=["a"]), b'{"b":2}', b"{}"),
        (JsonFilter(whitelist=["a"]), b'{"a":1.50e1}', b'{"a":1.50e1}'),
        (JsonFilter(whitelist=["a"]), b'{"a":{"z":1,"y":[]}}', b'{"a":{"z":1,"y":[]}}'),
        (JsonFilter("a", "x", ["b"]), b'{"a":"x","b":2}', b'{"b":2}'),
        # What is no UTF-8 is passed all the same.
        (JsonFilter("a"), b'{"a":"\xff"}', b'{"a":"\xff"}'),
    ],
)
def test_what_passes(filter_: JsonFilter, body: bytes, expected: bytes | None) -> None:
    assert expected == filter_.filter(body)


@pytest.mark.parametrize("body", [b"", b"{", b"abc", b'{"a":1', b"{a:1}", b"[" * 100_000])
def test_what_is_no_json_is_told_apart(body: bytes) -> None:
    with pytest.raises(NotJson, match="Unable to decode json"):
        JsonFilter("a").filter(body)


def test_what_is_not_as_promised_is_no_match_but_a_failure() -> None:
    with pytest.raises(Unfit, match="missing field 'a' to check required value"):
        JsonFilter("a", "1").filter(b"{}")
    with pytest.raises(Unfit, match="json is not an object"):
        JsonFilter(whitelist=["a"]).filter(b"[]")
