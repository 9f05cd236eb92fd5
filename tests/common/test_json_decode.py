"""JSON of others: whatever is wrong with it, it is a ValueError that says so."""

import pytest

from penstock.common.json_decode import decode_json


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'["a"', "truncated"),
        (b"[1]", "Expected `str`, got `int`"),
        (b'["\xff"]', "not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_json(data, list[str])


def test_what_is_nested_too_deep_is_told() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        decode_json(b"[" * 100_000, list[object])


def test_what_can_be_read_is_read() -> None:
    assert ["\N{SNOWMAN}"] == decode_json(b'["\xe2\x98\x83"]', list[str])
