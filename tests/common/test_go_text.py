"""A peer's bytes in error texts, unchanged or quoted as Go quotes them."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.go_text import quoted, to_bytes, verbatim


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", '""'),
        (b"plain-name_1.2", '"plain-name_1.2"'),
        (b"two words", '"two words"'),
        (b'say "hi"', r'"say \"hi\""'),
        (b"back\\slash", r'"back\\slash"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x01\x1f\x7f", r'"\x00\x01\x1f\x7f"'),
        ("héllo wörld".encode(), '"héllo wörld"'),
        ("日本語".encode(), '"日本語"'),
        ("\U0001f600".encode(), '"\U0001f600"'),
        (b"\xff\x80", r'"\xff\x80"'),
        (b"cut off: \xe6\x97", r'"cut off: \xe6\x97"'),
        (b"surrogate: \xed\xa0\x80", r'"surrogate: \xed\xa0\x80"'),
        (b"overlong: \xc0\xaf", r'"overlong: \xc0\xaf"'),
        ("\u0085".encode(), r'"\u0085"'),
        ("\u00a0".encode(), r'"\u00a0"'),
        ("\u200b\u2028\ufeff".encode(), r'"\u200b\u2028\ufeff"'),
        ("\ue000".encode(), r'"\ue000"'),
        ("\ufffd".encode(), '"\ufffd"'),
        ("\U000e0001\U0010ffff".encode(), r'"\U000e0001\U0010ffff"'),
        (b"'single'", "\"'single'\""),
    ],
)
def test_quoting_is_that_of_go(raw: bytes, expected: str) -> None:
    assert expected == quoted(raw)


@given(st.text())
def test_a_quoted_text_reads_back_the_same(text: str) -> None:
    """Python's string literals have the same escapes."""
    encoded = text.encode("utf-8", "replace")

    assert encoded.decode() == ast.literal_eval(quoted(encoded))


@given(st.binary())
def test_quoted_text_is_printable(raw: bytes) -> None:
    assert quoted(raw).isprintable()


@given(st.binary())
def test_verbatim_bytes_read_back_the_same(raw: bytes) -> None:
    assert raw == to_bytes(verbatim(raw))
