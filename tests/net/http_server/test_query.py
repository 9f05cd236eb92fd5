"""The table of exchanges has the rules; here is what no table holds."""

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server.query import parse_query


@given(st.dictionaries(st.text(), st.text()))
def test_what_was_escaped_comes_back(args: dict[str, str]) -> None:
    pairs = [f"{quote_plus(name)}={quote_plus(value)}" for name, value in args.items()]

    assert args == parse_query("&".join(pairs).encode())


@given(st.binary())
def test_anything_is_either_read_or_refused(raw: bytes) -> None:
    try:
        args = parse_query(raw)
    except ValueError:
        return

    assert all(isinstance(text, str) for pair in args.items() for text in pair)


def test_bytes_that_are_no_text_are_not_confused() -> None:
    assert parse_query(b"a=%fe") != parse_query(b"a=%ff")


@pytest.mark.parametrize("raw", [b"a=%zz", b"a=%e", b"a;b"])
def test_what_go_refuses_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="undecodable"):
        parse_query(raw)
