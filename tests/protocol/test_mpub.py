"""The body of an MPUB, whole and in pieces."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import ProtocolError
from penstock.protocol import commands
from penstock.protocol.events import Limits
from penstock.protocol.mpub import MultiBody, parse_mpub_body

LIMITS = Limits(max_msg_size=100, max_body_size=250)
BODY_SIZE_BYTES = 4


def body_of(*messages: bytes) -> bytes:
    """The body without its size, as over HTTP."""
    return commands.mpub("t", messages).partition(b"\n")[2][BODY_SIZE_BYTES:]


def test_a_body_is_split_into_messages() -> None:
    assert [b"a", b"bb", b"\x00\n"] == parse_mpub_body(body_of(b"a", b"bb", b"\x00\n"), LIMITS)


def test_bytes_after_the_last_message_are_ignored() -> None:
    assert [b"a"] == parse_mpub_body(body_of(b"a") + b"rest", LIMITS)


def test_a_body_of_the_maximum_size_is_accepted() -> None:
    messages = [b"x" * 100, b"y" * 100, b"z" * 34]

    assert 250 == len(body_of(*messages))
    assert messages == parse_mpub_body(body_of(*messages), LIMITS)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "E_BAD_BODY MPUB failed to read message count"),
        (b"\x00\x00\x00", "E_BAD_BODY MPUB failed to read message count"),
        (b"\x00\x00\x00\x00", "E_BAD_BODY MPUB invalid message count 0"),
        (b"\x80\x00\x00\x00", "E_BAD_BODY MPUB invalid message count -2147483648"),
        (b"\x7f\xff\xff\xff", "E_BAD_BODY MPUB invalid message count 2147483647"),
        (b"\x00\x00\x00\x01", "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (body_of(b"a", b"b")[:-5], "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (body_of(b"a", b"b")[:-1], "E_BAD_MESSAGE MPUB failed to read message body"),
        (body_of(b"a", b""), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (body_of(b"", b""), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (body_of(b"a", b"x" * 101), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
        # The first error is reported.
        (body_of(b"x" * 101, b""), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (body_of(b"", b"x" * 101), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (
            body_of(b"x" * 100, b"x" * 100, b"x" * 35, b""),
            "E_BAD_BODY MPUB body too big 251 > 250",
        ),
        # A negative size does not move the position backwards.
        (
            b"\x00\x00\x00\x09" + b"\x00\x00\x00\x01a" + b"\xff\xff\xff\xf7" + b"x" * 50,
            "E_BAD_MESSAGE MPUB invalid message(1) body size -9",
        ),
    ],
)
def test_a_bad_body_is_refused(body: bytes, error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_mpub_body(body, LIMITS)

    assert error == str(caught.value)


def test_a_body_of_the_maximum_size_may_come_in_pieces() -> None:
    messages = [b"x" * 100, b"y" * 100, b"z" * 34]
    body = body_of(*messages)
    multi = MultiBody("MPUB", LIMITS, sized=False)
    unread = body[multi.read(body[:-1], 0) :]

    assert 4 + 34 == multi.missing == len(unread)
    multi.read(unread, 0)
    assert messages == multi.bodies


def test_the_errors_name_the_command() -> None:
    with pytest.raises(ProtocolError, match="E_BAD_BODY DMPUB invalid body size 0"):
        MultiBody("DMPUB", LIMITS).read(b"\x00\x00\x00\x00", 0)


def test_complete_messages_are_kept_and_not_parsed_again() -> None:
    multi = MultiBody("MPUB", LIMITS, sized=False)
    first = struct.pack(">ii", 3, 1) + b"a" + struct.pack(">i", 2) + b"b"
    unread = multi.read(first, 0)

    assert [b"a"] == multi.bodies
    assert struct.pack(">i", 2) + b"b" == first[unread:]
    assert 4 + 2 == multi.missing

    second = first[unread:] + b"b" + struct.pack(">i", 1)
    unread = multi.read(second, 0)

    assert [b"a", b"bb"] == multi.bodies
    assert struct.pack(">i", 1) == second[unread:]
    assert 4 + 1 == multi.missing

    third = second[unread:] + b"crest"
    unread = multi.read(third, 0)

    assert [b"a", b"bb", b"c"] == multi.bodies
    assert b"rest" == third[unread:]
    assert 0 == multi.missing


def test_parsing_can_start_at_any_position() -> None:
    multi = MultiBody("MPUB", LIMITS, sized=False)
    data = b"before" + body_of(b"a") + b"after"

    assert b"after" == data[multi.read(data, len(b"before")) :]
    assert [b"a"] == multi.bodies


@given(
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_a_body_is_read_however_it_is_split(messages: list[bytes], sizes: list[int]) -> None:
    limits = Limits(max_msg_size=20, max_body_size=1000)
    multi = MultiBody("MPUB", limits, sized=False)
    rest, unread = body_of(*messages), b""
    while multi.missing:
        size = sizes[len(rest) % len(sizes)]
        unread, rest = unread + rest[:size], rest[size:]
        unread = unread[multi.read(unread, 0) :]

    assert messages == multi.bodies
    assert b"" == unread + rest
