"""Bodies in pieces of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server.bodies import Body, BodyTooBig, ChunkedBody, SizedBody
from penstock.net.http_server.errors import BadRequest

PIPELINED = b"GET /ping HTTP/1.1\r\n\r\n"


def feed_in_pieces(body: Body, data: bytes, size: int) -> bytes:
    """Feeds `data` in pieces of `size`; returns what the body did not take."""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        taken = body.feed(piece)
        if body.done:
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


def test_an_empty_body_is_done_before_it_begins() -> None:
    assert SizedBody(0).done
    assert b"" == SizedBody(0).take()


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 64))
def test_chunks_are_put_together(parts: list[bytes], size: int) -> None:
    content = b"".join(parts)
    body = ChunkedBody(len(content))

    rest = feed_in_pieces(body, in_chunks(parts) + PIPELINED, size)

    assert content == body.take()
    assert PIPELINED == rest


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=10), st.integers(1, 64))
def test_chunks_that_are_too_long_together_are_refused(parts: list[bytes], size: int) -> None:
    body = ChunkedBody(len(b"".join(parts)) - 1)

    with pytest.raises(BodyTooBig):
        feed_in_pieces(body, in_chunks(parts), size)


def test_a_chunk_that_is_too_long_is_refused_by_its_size_alone() -> None:
    body = ChunkedBody(9)

    with pytest.raises(BodyTooBig):
        body.feed(b"a\r\n")


@given(st.lists(st.sampled_from([b"1", b"0", b"a", b"\r\n", b"\n", b"\r", b";x", b"X: y", b" "])))
def test_anything_is_a_body_or_no_request(pieces: list[bytes]) -> None:
    body, data = ChunkedBody(100), b"".join(pieces)
    try:
        taken = body.feed(data)
    except (BadRequest, BodyTooBig):
        return

    assert body.done or taken == len(data)
