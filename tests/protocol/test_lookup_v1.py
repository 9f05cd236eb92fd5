"""nsqlookupd's V1 protocol, both sides, without sockets.

Each case runs whole, byte by byte, and with more data behind it, with the same result.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import ProtocolError
from penstock.protocol import lookup_v1
from penstock.protocol.events import LINE_BYTES_MAX
from penstock.protocol.lookup_v1 import (
    IDENTIFY_BYTES_MAX,
    MAGIC,
    Event,
    IdentifyPeer,
    LookupServerConnection,
    NsqdInfo,
    Ping,
    Register,
    ResponseReader,
    Unregister,
)

PEER: dict[str, object] = {
    "broadcast_address": "n1.example",
    "hostname": "n1",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
    "topology_zone": "z",
    "topology_region": "r",
}
IDENTIFIED = IdentifyPeer(NsqdInfo(**PEER))  # type: ignore[arg-type]
IDENTIFY = lookup_v1.identify(PEER)

Outcome = tuple[list[Event], str]


def sized(body: bytes) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def identify(**fields: object) -> bytes:
    return sized(json.dumps({**PEER, **fields}).encode())


def outcome(pieces: Iterable[bytes], *, ends: bool = False) -> Outcome:
    """The events, and the error after them."""
    connection = LookupServerConnection()
    events: list[Event] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            events += iter(connection.next_event, None)
        if ends:
            connection.receive_eof()
    except ProtocolError as error:
        assert connection.next_event() is None
        return events, str(error)
    return events, ""


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


GOOD: list[tuple[bytes, list[Event]]] = [
    (b"", []),
    (b"PING\n", [Ping()]),
    (b"PING\r\n", [Ping()]),
    (b"  PING \n", [Ping()]),
    (b"PING a b\n", [Ping()]),
    (b"PING draining\n", [Ping(draining=True)]),
    (b"PING drainingly\n", [Ping()]),
    (lookup_v1.ping(draining=True) + lookup_v1.ping(), [Ping(draining=True), Ping()]),
    (IDENTIFY, [IDENTIFIED]),
    (b"\tIDENTIFY now\r" + IDENTIFY.removeprefix(b"IDENTIFY"), [IDENTIFIED]),
    (b"PING\n" + IDENTIFY + b"PING\n", [Ping(), IDENTIFIED, Ping()]),
    (IDENTIFY + lookup_v1.register("t"), [IDENTIFIED, Register("t")]),
    (IDENTIFY + lookup_v1.register("t", "c"), [IDENTIFIED, Register("t", "c")]),
    (IDENTIFY + b"REGISTER t c surplus\n", [IDENTIFIED, Register("t", "c")]),
    (IDENTIFY + b"REGISTER t  c\n", [IDENTIFIED, Register("t")]),
    (IDENTIFY + lookup_v1.unregister("t"), [IDENTIFIED, Unregister("t")]),
    (
        IDENTIFY + lookup_v1.unregister("t#ephemeral", "c#ephemeral"),
        [IDENTIFIED, Unregister("t#ephemeral", "c#ephemeral")],
    ),
    (b" " * (LINE_BYTES_MAX - 5) + b"PING\n", [Ping()]),
]


@pytest.mark.parametrize(("data", "expected"), GOOD)
def test_valid_commands_are_parsed(data: bytes, expected: list[Event]) -> None:
    assert (expected, "") == outcome([MAGIC + data])
    assert (expected, "") == outcome(byte_by_byte(MAGIC + data))
    assert ([*expected, Ping()], "") == outcome([MAGIC + data + b"PING\n"])


BAD: list[tuple[bytes, str]] = [
    (b"\n", "E_INVALID invalid command "),
    (b"ping\n", "E_INVALID invalid command ping"),
    (b"SUB t c\n", "E_INVALID invalid command SUB"),
    (b"\xff\n", "E_INVALID invalid command \udcff"),
    (b"x" * LINE_BYTES_MAX, f"E_INVALID no newline within {LINE_BYTES_MAX} bytes"),
    (b"REGISTER t\n", "E_INVALID client must IDENTIFY"),
    (b"REGISTER\n", "E_INVALID client must IDENTIFY"),
    (b"UNREGISTER !\n", "E_INVALID client must IDENTIFY"),
    (IDENTIFY + b"IDENTIFY\n", "E_INVALID cannot IDENTIFY again"),
    *(
        (IDENTIFY + line, error)
        for word in (b"REGISTER", b"UNREGISTER")
        for line, error in (
            (word + b"\n", f"E_INVALID {word.decode()} insufficient number of params"),
            (word + b" \n", f"E_INVALID {word.decode()} insufficient number of params"),
            (word + b"  c\n", f"E_BAD_TOPIC {word.decode()} topic name '' is not valid"),
            (word + b" a*b\n", f"E_BAD_TOPIC {word.decode()} topic name 'a*b' is not valid"),
            (
                word + b" " + b"t" * 65 + b"\n",
                f"E_BAD_TOPIC {word.decode()} topic name '{'t' * 65}' is not valid",
            ),
            (
                word + b" t \xfe\n",
                f"E_BAD_CHANNEL {word.decode()} channel name '\udcfe' is not valid",
            ),
        )
    ),
    *(
        (identify(**{name: empty}), "E_BAD_BODY IDENTIFY missing fields")
        for name, empty in {
            "broadcast_address": "",
            "tcp_port": 0,
            "http_port": 0,
            "version": None,
        }.items()
    ),
    (sized(b"null"), "E_BAD_BODY IDENTIFY missing fields"),
    *(
        (sized(body), "E_BAD_BODY IDENTIFY failed to decode JSON body")
        for body in (b"", b"{", b"[]", b'"x"', b"[" * 20_000, b'{"tcp_port":NaN}')
    ),
    *(
        (identify(**{name: wrong}), "E_BAD_BODY IDENTIFY failed to decode JSON body")
        for name, wrong in {
            "tcp_port": "4150",
            "http_port": 4151.0,
            "version": 1,
            "hostname": True,
            "remote_address": 7,
            "topology_zone": [],
        }.items()
    ),
    *(
        (
            b"IDENTIFY\n" + struct.pack(">i", size),
            f"E_BAD_BODY IDENTIFY body size {size} out of range 0-{IDENTIFY_BYTES_MAX}",
        )
        for size in (-1, -(2**31), IDENTIFY_BYTES_MAX + 1, 2**31 - 1)
    ),
]


@pytest.mark.parametrize(("data", "error"), BAD)
def test_invalid_commands_are_refused(data: bytes, error: str) -> None:
    events, told = outcome([MAGIC + data])

    assert error == told
    assert (events, error) == outcome(byte_by_byte(MAGIC + data))
    assert (events, error) == outcome([MAGIC + data + b"PING\nPING\n"])


@pytest.mark.parametrize("magic", [b"  V2", b"GET ", b"V1  ", b"\0\0\0\0"])
def test_a_peer_of_another_protocol_gets_an_error(magic: bytes) -> None:
    assert ([], "E_BAD_PROTOCOL") == outcome([magic])
    assert ([], "E_BAD_PROTOCOL") == outcome(byte_by_byte(magic))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ""),
        (MAGIC[:3], ""),
        (MAGIC + b"PIN", ""),
        (MAGIC + b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
        (MAGIC + IDENTIFY[:11], "E_BAD_BODY IDENTIFY failed to read body size"),
        (MAGIC + IDENTIFY[:13], "E_BAD_BODY IDENTIFY failed to read body"),
        (MAGIC + IDENTIFY[:-1], "E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_a_stream_that_ends_early_is_an_error(data: bytes, error: str) -> None:
    assert error == outcome([data], ends=True)[1]
    assert error == outcome(byte_by_byte(data), ends=True)[1]


def test_names_of_fields_match_in_any_case_and_unknown_ones_are_ignored() -> None:
    body = {name.upper(): value for name, value in PEER.items()} | {"draining": {}, "x": 1}

    assert ([IDENTIFIED], "") == outcome([MAGIC, sized(json.dumps(body).encode())])


def test_a_partly_received_command_is_reported() -> None:
    connection = LookupServerConnection()
    seen = []
    for piece in (b"  ", b"V1", b"PI", b"NG\n", IDENTIFY[:20], IDENTIFY[20:], b"x\n"):
        connection.receive_data(piece)
        try:
            list(iter(connection.next_event, None))
        except ProtocolError:
            seen.append(connection.is_inside_command)
            break
        seen.append(connection.is_inside_command)

    assert [True, False, True, False, True, False, False] == seen


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_input_raises_only_a_protocol_error(pieces: list[bytes]) -> None:
    outcome([MAGIC, *pieces], ends=True)
    outcome([MAGIC, IDENTIFY, *pieces, b"\n"], ends=True)
    outcome([MAGIC, sized(b"".join(pieces))], ends=True)


# Client side.


def responses(pieces: Iterable[bytes]) -> list[bytes]:
    reader = ResponseReader()
    read: list[bytes] = []
    for piece in pieces:
        reader.receive_data(piece)
        read += iter(reader.next_response, None)
    return read


def test_responses_are_read_however_they_are_split() -> None:
    data = lookup_v1.OK + lookup_v1.response(b"") + lookup_v1.response(b'{"version":"1.3.0"}')
    expected = [b"OK", b"", b'{"version":"1.3.0"}']

    assert expected == responses([data])
    assert expected == responses(byte_by_byte(data))


@pytest.mark.parametrize(
    ("data", "code", "detail", "fatal"),
    [
        (b"E_BAD_PROTOCOL", "E_BAD_PROTOCOL", "", True),
        (b"E_INVALID invalid command \xff", "E_INVALID", "invalid command \udcff", True),
        (b"E_REGISTER_FAILED REGISTER failed x", "E_REGISTER_FAILED", "REGISTER failed x", False),
    ],
)
def test_an_error_is_distinguished_from_other_data(
    data: bytes, code: str, detail: str, fatal: bool
) -> None:
    with pytest.raises(ProtocolError) as raised:
        responses([lookup_v1.response(data)])

    error = raised.value
    assert (code, detail, fatal) == (error.code, error.detail, error.fatal)
    assert lookup_v1.response(data) == lookup_v1.error(error)


@pytest.mark.parametrize("data", [b"E_", b"E_oops", b"OK E_INVALID"])
def test_data_that_resembles_an_error_is_not_one(data: bytes) -> None:
    assert [data] == responses([lookup_v1.response(data)])


@pytest.mark.parametrize("size", [-1, 64 * 1024 + 1, 2**31 - 1])
def test_an_invalid_response_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="not a response"):
        responses([struct.pack(">i", size)])


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(0, 0), (1023, 1023), (-1, None), (1024, None), (2**70, None), (1.5, None), ("7", None)],
)
def test_node_id_is_optional_and_may_have_any_value(sent: object, expected: int | None) -> None:
    """NSQ's nsqlookupd ignores the field."""
    events, _ = outcome([MAGIC, lookup_v1.identify({**PEER, "node_id": sent})])

    (identified,) = events
    assert isinstance(identified, IdentifyPeer)
    assert expected == identified.peer.node_id
    assert None is IDENTIFIED.peer.node_id


def test_both_sides_agree_on_identify() -> None:
    odd: dict[str, Any] = {**PEER, "hostname": "<ü&>\u2028"}

    events, _ = outcome([MAGIC, lookup_v1.identify(odd)])

    assert [IdentifyPeer(NsqdInfo(**odd))] == events
