"""Request lines, headers, query strings and bodies; test_connection.py tests whole exchanges."""

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server.parsing import (
    BadRequestError,
    Body,
    BodyTooLargeError,
    ChunkedBody,
    RequestHead,
    RequestLine,
    SizedBody,
    is_valid_head_prefix,
    parse_headers,
    parse_query,
)

LINE = b"GET /ping?a=b HTTP/1.1\r\n"


def head(headers: bytes) -> RequestHead:
    return RequestHead(RequestLine(LINE), parse_headers(headers))


def test_a_request_line_is_parsed() -> None:
    line = RequestLine(b"PUT /config/a%20b?c=d&e HTTP/1.0\r\n")

    assert "PUT" == line.method
    assert b"/config/a%20b?c=d&e" == line.target
    assert "/config/a b" == line.path
    assert b"c=d&e" == line.query
    assert {"c": "d", "e": ""} == line.args
    assert not line.is_http_11


def test_header_names_are_in_lower_case_and_repeated_headers_are_joined() -> None:
    headers = parse_headers(b"HOST: a\r\nX-Y:b \t\r\nEmpty:\r\nx-y:  c d\r\n\r\n")

    assert {b"host": b"a", b"x-y": b"b, c d", b"empty": b""} == headers


def test_every_prefix_of_a_request_line_is_a_valid_head_prefix() -> None:
    assert [] == [size for size in range(1, len(LINE) + 1) if not is_valid_head_prefix(LINE[:size])]


@pytest.mark.parametrize("start", [b"\x16", b"GET\n", b"GET /\n", b"GET / X", b"GET / HTTP/1.1\n"])
def test_garbage_is_no_valid_head_prefix(start: bytes) -> None:
    assert not is_valid_head_prefix(start)


ODD_BYTES = st.sampled_from(
    [b"GET", b" ", b"/", b"*", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b":", b"a", b"%", b"\xff", b"\0"]
)


@given(st.lists(ODD_BYTES, max_size=12))
def test_any_line_is_parsed_or_refused(pieces: list[bytes]) -> None:
    try:
        line = RequestLine(b"".join(pieces))
    except BadRequestError:
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
def test_any_headers_are_parsed_or_refused(pieces: list[bytes]) -> None:
    try:
        found = head(b"".join(pieces) + b"\r\n\r\n")
    except BadRequestError:
        return

    assert not (found.is_chunked and found.content_length)


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
    with pytest.raises(BadRequestError):
        head(raw)


@given(st.dictionaries(st.text(), st.text()))
def test_escaped_arguments_are_decoded(args: dict[str, str]) -> None:
    pairs = [f"{quote_plus(name)}={quote_plus(value)}" for name, value in args.items()]

    assert args == parse_query("&".join(pairs).encode())


@given(st.binary())
def test_any_query_is_parsed_or_refused(raw: bytes) -> None:
    try:
        args = parse_query(raw)
    except ValueError:
        return

    assert all(isinstance(text, str) for pair in args.items() for text in pair)


def test_bytes_that_are_not_utf8_stay_different() -> None:
    assert parse_query(b"a=%fe") != parse_query(b"a=%ff")


@pytest.mark.parametrize("raw", [b"a=%zz", b"a=%e", b"a;b"])
def test_queries_that_go_refuses_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="undecodable"):
        parse_query(raw)


PIPELINED = b"GET /ping HTTP/1.1\r\n\r\n"


def feed_in_pieces(body: Body, data: bytes, size: int) -> bytes:
    """Feeds `data` in pieces of `size`; returns the bytes after the body."""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        taken = body.feed(piece)
        if body.is_complete:
            return piece[taken:] + data[start + size :]
        assert len(piece) == taken
    return b""


def in_chunks(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.binary(), st.integers(1, 64))
def test_a_sized_body_takes_its_bytes_and_no_more(content: bytes, size: int) -> None:
    body = SizedBody(len(content))

    rest = feed_in_pieces(body, content + PIPELINED, size)

    assert content == body.take()
    assert (content + PIPELINED).endswith(rest)
    assert len(rest) == len(PIPELINED) or not content


def test_an_empty_body_is_complete_from_the_start() -> None:
    assert SizedBody(0).is_complete
    assert b"" == SizedBody(0).take()


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 64))
def test_chunks_are_put_together(parts: list[bytes], size: int) -> None:
    content = b"".join(parts)
    body = ChunkedBody(len(content))

    rest = feed_in_pieces(body, in_chunks(parts) + PIPELINED, size)

    assert content == body.take()
    assert PIPELINED == rest


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=10), st.integers(1, 64))
def test_chunks_over_the_limit_in_total_are_refused(parts: list[bytes], size: int) -> None:
    body = ChunkedBody(len(b"".join(parts)) - 1)

    with pytest.raises(BodyTooLargeError):
        feed_in_pieces(body, in_chunks(parts), size)


def test_a_chunk_over_the_limit_is_refused_by_its_size_line() -> None:
    body = ChunkedBody(9)

    with pytest.raises(BodyTooLargeError):
        body.feed(b"a\r\n")


@given(st.lists(st.sampled_from([b"1", b"0", b"a", b"\r\n", b"\n", b"\r", b";x", b"X: y", b" "])))
def test_any_chunked_body_is_parsed_or_refused(pieces: list[bytes]) -> None:
    body, data = ChunkedBody(100), b"".join(pieces)
    try:
        taken = body.feed(data)
    except (BadRequestError, BodyTooLargeError):
        return

    assert body.is_complete or taken == len(data)
