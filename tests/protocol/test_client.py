"""The client side of a connection, tested with bytes and with our server side."""

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.client import (
    Agreed,
    ClientConnection,
    CloseWait,
    Confirmed,
    Delivered,
    Event,
    Opened,
    Opening,
    Rejected,
)
from penstock.protocol.compression import Deflate, Layer, Snappy
from penstock.protocol.frames import FrameReader, MessageFrame

TIMESTAMP_NS = 1_700_000_000_000_000_000
ID = b"0000000000000abc"

Connection: TypeAlias = ClientConnection[MessageFrame, str]
Feed: TypeAlias = Callable[[Connection, bytes], list[Event[MessageFrame, str]]]


@pytest.fixture(params=[1, 7, 100_000], ids="{} bytes at a time".format)
def feed(request: pytest.FixtureRequest) -> Feed:
    """Pass bytes to a connection, whole or in pieces; returns the events."""

    def give(connection: Connection, data: bytes) -> list[Event[MessageFrame, str]]:
        events: list[Event[MessageFrame, str]] = []
        for start in range(0, len(data), request.param):
            connection.receive_data(data[start : start + request.param])
            events += iter(connection.next_event, None)
        return events

    return give


def feed_whole(connection: Connection, data: bytes) -> list[Event[MessageFrame, str]]:
    connection.receive_data(data)
    return list(iter(connection.next_event, None))


def identified(**fields: object) -> bytes:
    return frames.response(json.dumps(fields).encode())


def opened(opening: Opening | None = None, answers: bytes = b"") -> Connection:
    connection: Connection = ClientConnection(opening or Opening(), MessageFrame)
    feed_whole(connection, identified() + answers)
    connection.data_to_send()
    return connection


# Opening ------------------------------------------------------------------------------------------


def test_it_starts_with_the_magic_and_identify() -> None:
    connection: Connection = ClientConnection(Opening({"client_id": "me"}), MessageFrame)

    features = {"feature_negotiation": True, "client_id": "me"}
    assert commands.MAGIC + commands.identify(features) == connection.data_to_send()
    assert b"" == connection.data_to_send()


def test_it_opens_with_the_features_that_the_server_grants(feed: Feed) -> None:
    connection: Connection = ClientConnection(Opening(), MessageFrame)
    answer = identified(version="1.3.0", max_rdy_count=10, msg_timeout=5000)

    expected = Agreed(version="1.3.0", max_rdy_count=10, msg_timeout_ms=5000)
    assert [Opened(expected)] == feed(connection, answer)


def test_a_server_without_feature_negotiation_is_accepted(feed: Feed) -> None:
    connection: Connection = ClientConnection(Opening(), MessageFrame)

    assert [Opened(Agreed())] == feed(connection, frames.OK)


def test_it_authenticates_and_subscribes_before_it_is_open(feed: Feed) -> None:
    opening = Opening(auth_secret=b"secret", topic="t", channel="c")
    connection: Connection = ClientConnection(opening, MessageFrame)
    connection.data_to_send()

    assert [] == feed(connection, identified(auth_required=True))
    assert commands.auth(b"secret") == connection.data_to_send()
    assert [] == feed(connection, frames.response(b'{"identity":"me"}'))
    assert commands.sub("t", "c") == connection.data_to_send()
    assert [Opened(connection.agreed)] == feed(connection, frames.OK)


@pytest.mark.parametrize(
    ("name", "make"), [("snappy", Snappy), ("deflate", Deflate)], ids=["snappy", "deflate"]
)
def test_compression_starts_after_the_ok_for_it(
    name: str, make: Callable[[], Layer], feed: Feed
) -> None:
    opening = Opening({name: True}, make_compression={name: lambda _level: make()})
    connection: Connection = ClientConnection(opening, MessageFrame)
    connection.data_to_send()
    server = make()

    answer = identified(**{name: True}) + server.encode(frames.OK)
    (event,) = feed(connection, answer)
    assert Opened(connection.agreed) == event
    connection.publish(commands.pub("t", b"body"), "one")
    server.receive(connection.data_to_send())
    assert commands.pub("t", b"body") == server.read()
    assert [Confirmed(["one"])] == feed(connection, server.encode(frames.OK))


@pytest.mark.parametrize(
    ("opening", "answer", "complaint"),
    [
        (Opening({"tls_v1": True}), identified(tls_v1=False), "does not offer TLS"),
        (Opening(), identified(auth_required=True), "requires AUTH"),
        (Opening({"tls_v1": True}), frames.OK, "does not offer TLS"),
        (Opening(), frames.response(b"no"), "unexpected response to IDENTIFY: b'no'"),
        (Opening(), frames.response(b"[]"), "unexpected response to IDENTIFY"),
        (Opening(), identified(max_rdy_count="many"), "unexpected response to IDENTIFY"),
        (
            Opening(topic="t", channel="c"),
            identified() + frames.CLOSE_WAIT,
            "unexpected response to SUB",
        ),
        (
            Opening(),
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "not a frame: it is HTTP, which has another port",
        ),
    ],
)
def test_an_invalid_response_while_opening_is_an_error(
    opening: Opening, answer: bytes, complaint: str
) -> None:
    connection: Connection = ClientConnection(opening, MessageFrame)

    with pytest.raises(ProtocolError, match=complaint):
        feed_whole(connection, answer)


def test_an_error_while_opening_is_an_event(feed: Feed) -> None:
    connection: Connection = ClientConnection(Opening(), MessageFrame)
    error = ProtocolError("E_BAD_BODY", "IDENTIFY msg timeout (5) is invalid")

    (refused,) = feed(connection, frames.error(error))

    assert isinstance(refused, Rejected)
    assert (str(error), True, None) == (str(refused.error), refused.error.fatal, refused.receipt)


# Messages -----------------------------------------------------------------------------------------


def test_messages_come_as_they_were_sent(feed: Feed) -> None:
    sent = frames.render_messages([b"one", b"", b"three"], 0xABC, TIMESTAMP_NS)

    events = feed(opened(), frames.HEARTBEAT + b"".join(sent) + frames.CLOSE_WAIT)

    received = [each for event in events if isinstance(event, Delivered) for each in event.messages]
    assert [b"one", b"", b"three"] == [message.body for message in received]
    assert MessageFrame(TIMESTAMP_NS, 1, ID, b"one") == received[0]
    assert CloseWait() == events[-1]


def test_the_messages_of_one_read_are_one_event() -> None:
    sent = frames.render_messages([b"body"] * 100, 0xABC, TIMESTAMP_NS)

    (event,) = feed_whole(opened(), b"".join(sent))

    assert isinstance(event, Delivered)
    assert 100 == len(event.messages)


def test_a_heartbeat_is_answered_without_an_event(feed: Feed) -> None:
    connection = opened()

    assert [] == feed(connection, frames.HEARTBEAT * 2)
    assert commands.nop() * 2 == connection.data_to_send()


def test_a_message_that_is_too_short_is_an_error() -> None:
    reader = FrameReader()
    reader.receive_data(b"\x00\x00\x00\x05\x00\x00\x00\x02x" + bytes(100))

    assert [] == reader.next_messages(MessageFrame)
    with pytest.raises(ProtocolError, match="too short"):
        reader.next_frame()


def test_several_fins_are_rendered_as_one_command_each() -> None:
    assert commands.fin(ID) == commands.fins([ID])
    assert commands.fin(ID) * 3 == commands.fins([ID] * 3)


# Publishing ---------------------------------------------------------------------------------------


def test_confirmations_return_the_receipts_in_order(feed: Feed) -> None:
    connection = opened()
    for receipt in ("one", "two", "three"):
        connection.publish(commands.pub("t", receipt.encode()), receipt)

    events = feed(connection, frames.OK + frames.HEARTBEAT + frames.OK)

    confirmed = [
        each for event in events if isinstance(event, Confirmed) for each in event.receipts
    ]
    assert ["one", "two"] == confirmed
    assert 1 == connection.unconfirmed
    assert "three" == connection.oldest_unconfirmed
    assert ["three"] == connection.take_unconfirmed()
    assert [] == connection.take_unconfirmed()


def test_an_error_belongs_to_the_oldest_publish() -> None:
    connection = opened()
    connection.publish(commands.pub("t", b"one"), "one")
    connection.publish(commands.pub("t", b""), "two")
    connection.publish(commands.pub("t", b"three"), "three")
    error = ProtocolError("E_BAD_MESSAGE", "PUB invalid message body size 0")

    confirmed, refused = feed_whole(connection, frames.OK + frames.error(error))

    assert Confirmed(["one"]) == confirmed
    assert isinstance(refused, Rejected)
    assert ("two", "E_BAD_MESSAGE") == (refused.receipt, refused.error.code)
    assert ["three"] == connection.take_unconfirmed()


def test_a_fin_error_does_not_belong_to_a_publish() -> None:
    connection = opened()
    connection.publish(commands.pub("t", b"one"), "one")
    error = ProtocolError("E_FIN_FAILED", "FIN failed ID not in flight", fatal=False)

    refused, confirmed = feed_whole(connection, frames.error(error) + frames.OK)

    assert isinstance(refused, Rejected)
    assert (None, False) == (refused.receipt, refused.error.fatal)
    assert Confirmed(["one"]) == confirmed


@pytest.mark.parametrize("answer", [frames.OK, frames.response(b"what?")])
def test_a_response_without_a_request_is_an_error(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match="unexpected response"):
        feed_whole(opened(), answer)


# Anything -----------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        frames.OK,
        frames.HEARTBEAT,
        frames.CLOSE_WAIT,
        identified(max_rdy_count=1),
        frames.error(ProtocolError("E_INVALID", "no")),
        *frames.render_messages([b"one", b"two"], 0xABC, TIMESTAMP_NS),
        frames.response(b'{"msg_timeout":Infinity}'),
    ]
)


@given(st.lists(PIECES | st.binary(max_size=20)), st.booleans())
def test_any_input_raises_only_protocol_errors(pieces: list[bytes], subscribes: bool) -> None:
    opening = Opening(topic="t", channel="c") if subscribes else Opening()
    connection: Connection = ClientConnection(opening, MessageFrame)
    for piece in pieces:
        try:
            feed_whole(connection, piece)
        except ProtocolError:
            return
