"""The table of exchanges has the rules; here is what no table holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server.errors import BadRequest
from penstock.net.http_server.head import Head, RequestLine, may_become_head, parse_headers

LINE = b"GET /ping?a=b HTTP/1.1\r\n"


def head(headers: bytes) -> Head:
    return Head(RequestLine(LINE), parse_headers(headers))


def test_a_line_is_taken_apart() -> None:
    line = RequestLine(b"PUT /config/a%20b?c=d&e HTTP/1.0\r\n")

    assert "PUT" == line.method
    assert b"/config/a%20b?c=d&e" == line.target
    assert "/config/a b" == line.path
    assert b"c=d&e" == line.query
    assert {"c": "d", "e": ""} == line.args
    assert not line.http_11


def test_headers_are_found_by_their_names_in_lower_case() -> None:
    headers = parse_headers(b"HOST: a\r\nX-Y:b \t\r\nEmpty:\r\nx-y:  c d\r\n\r\n")

    assert {b"host": b"a", b"x-y": b"b, c d", b"empty": b""} == headers


def test_every_start_of_a_line_may_become_a_head() -> None:
    assert [] == [size for size in range(1, len(LINE) + 1) if not may_become_head(LINE[:size])]


@pytest.mark.parametrize("start", [b"\x16", b"GET\n", b"GET /\n", b"GET / X", b"GET / HTTP/1.1\n"])
def test_garbage_may_not(start: bytes) -> None:
    assert not may_become_head(start)


ODD_BYTES = st.sampled_from(
    [b"GET", b" ", b"/", b"*", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b":", b"a", b"%", b"\xff", b"\0"]
)


@given(st.lists(ODD_BYTES, max_size=12))
def test_any_line_is_one_or_is_refused(pieces: list[bytes]) -> None:
    try:
        line = RequestLine(b"".join(pieces))
    except BadRequest:
        return

    assert line.method
    assert line.target


ODD_HEADERS = st.sampled_from(
    [
        *(b"Host: a", b"Content-Length", b"Transfer-Encoding", b"Expect", b"Connection", b"X"),
        *(b": ", b":", b"1", b"chunked", b"close", b",", b" ", b"\t", b"\0", b"\xff"),
        *(b"\r\n", b"\r\n", b"\r", b"\n"),
    ]
)


@given(st.lists(ODD_HEADERS, max_size=20))
def test_any_headers_are_some_or_are_refused(pieces: list[bytes]) -> None:
    try:
        found = head(b"".join(pieces) + b"\r\n\r\n")
    except BadRequest:
        return

    assert not (found.chunked and found.content_length)


@pytest.mark.parametrize(
    "raw",
    [
        b"X: " + b" " * (1 << 20) + b"\r\n\r\n",
        b"X: " + b"\t" * (1 << 20) + b"\0\r\n\r\n",
        b"X" * (1 << 20) + b"\r\n\r\n",
        b"Host: " + b"a" * (1 << 20) + b"\0\r\n\r\n",
        b"Connection: " + b"," * (1 << 20) + b"\r\n\r\n",
        b"a:\r\n" * (1 << 18) + b"\r\n",
    ],
)
def test_large_headers_are_refused(raw: bytes) -> None:
    """A megabyte, in shapes that a parser with quadratic cost would not finish before the test's
    timeout."""
    with pytest.raises(BadRequest):
        head(raw)
