"""The bytes of frames, and the frame reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import ProtocolError
from penstock.common.go_text import verbatim
from penstock.protocol import frames
from penstock.protocol.frames import ErrorFrame, Frame, FrameReader, MessageFrame, ResponseFrame

MESSAGE = bytes.fromhex(
    "00000020"  # size of what follows: 32
    "00000002"  # type: message
    "0123456789abcdef"  # timestamp
    "0001"  # attempts
    "30303430303030303030303061626366"  # id: 004000000000abcf
    "6869"  # body: hi
)
TIMESTAMP_NS = 0x0123456789ABCDEF


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (frames.OK, b"\x00\x00\x00\x06\x00\x00\x00\x00OK"),
        (frames.HEARTBEAT, b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"),
        (frames.CLOSE_WAIT, b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"),
        (frames.response(b""), b"\x00\x00\x00\x04\x00\x00\x00\x00"),
        (frames.response(b"{}"), b"\x00\x00\x00\x06\x00\x00\x00\x00{}"),
        (
            frames.error(ProtocolError("E_BAD_PROTOCOL")),
            b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL",
        ),
        (
            frames.error(ProtocolError("E_INVALID", "cannot SUB in current state")),
            b"\x00\x00\x00\x29\x00\x00\x00\x01E_INVALID cannot SUB in current state",
        ),
        (
            frames.error(ProtocolError("E_INVALID", "invalid command " + verbatim(b"\xff\n\xc3"))),
            b"\x00\x00\x00\x21\x00\x00\x00\x01E_INVALID invalid command \xff\n\xc3",
        ),
    ],
)
def test_a_frame_is_these_bytes(frame: bytes, expected: bytes) -> None:
    assert expected == frame


def test_an_error_whose_detail_ends_in_a_space_keeps_it() -> None:
    frame = frames.error(ProtocolError("E_INVALID", "invalid command "))

    assert frame.endswith(b"E_INVALID invalid command ")


# Messages -----------------------------------------------------------------------------------------


def test_a_message_frame_is_these_bytes() -> None:
    assert [MESSAGE] == frames.render_messages([b"hi"], 0x004000000000ABCF, TIMESTAMP_NS)


def test_the_fields_of_a_message_frame_can_be_read() -> None:
    assert b"004000000000abcf" == frames.message_id(MESSAGE)
    assert [b"004000000000abcf"] * 2 == frames.message_ids([MESSAGE, MESSAGE])
    assert TIMESTAMP_NS == frames.timestamp_ns(MESSAGE)
    assert 1 == frames.attempts(MESSAGE)
    assert b"hi" == frames.body(MESSAGE)


def test_messages_are_counted_by_the_time_of_their_publish() -> None:
    early = frames.render_messages([b"a", b"b"], 1, TIMESTAMP_NS)
    late = frames.render_messages([b"c"], 3, TIMESTAMP_NS + 1)

    expected = [(TIMESTAMP_NS, 2), (TIMESTAMP_NS + 1, 1)]
    assert expected == frames.timestamp_counts([early[0], *late, early[1]])


@pytest.mark.parametrize(
    ("count", "on_the_wire"), [(2, 2), (65535, 65535), (65536, 0), (65537, 1), (0, 0)]
)
def test_another_attempt_changes_only_the_attempts_field(count: int, on_the_wire: int) -> None:
    again = frames.with_attempts(MESSAGE, count)

    assert on_the_wire == frames.attempts(again)
    assert MESSAGE == frames.with_attempts(again, 1)


def test_no_messages_render_to_no_frames() -> None:
    assert [] == frames.render_messages([], 1, 1)


@pytest.mark.parametrize(
    "first_id", [0, 1, 0xFFE, 0xFFF, 0x1000, 0x0040_0000_0000_0FF0, 2**64 - 9000]
)
def test_ids_count_up_across_every_digit(first_id: int) -> None:
    bodies = [b"x"] * 9000
    rendered = frames.render_messages(bodies, first_id, 1)

    assert [b"%016x" % (first_id + index) for index in range(9000)] == frames.message_ids(rendered)


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=40),
    first_id=st.integers(0, 2**64 - 100),
    timestamp_ns=st.integers(0, 2**63 - 1),
)
def test_a_client_reads_what_was_rendered(
    bodies: list[bytes], first_id: int, timestamp_ns: int
) -> None:
    reader = FrameReader()
    reader.receive_data(b"".join(frames.render_messages(bodies, first_id, timestamp_ns)))
    expected = [
        MessageFrame(timestamp_ns, 1, b"%016x" % (first_id + index), body)
        for index, body in enumerate(bodies)
    ]

    assert expected == read_all(reader)


# Ids ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_ids_become_the_numbers_they_spell(numbers: list[int]) -> None:
    assert numbers == list(frames.ids_to_ints([b"%016x" % number for number in numbers]))


@pytest.mark.parametrize(
    "ids",
    [
        [b"000000000000000g"],
        [b"0000 0000 0000 00"],
        [b"00"],
        [b"0000000000000000", b"000000000000000"],
        [b"\xff" * 16],
        [b"                "],
        [b"000000000000000A"],
    ],
)
def test_ids_that_are_not_hex_are_refused(ids: list[bytes]) -> None:
    with pytest.raises(ValueError, match="hex"):
        frames.ids_to_ints(ids)


# The reader ---------------------------------------------------------------------------------------

STREAM = (
    frames.OK
    + frames.HEARTBEAT
    + frames.error(ProtocolError("E_FIN_FAILED", "FIN 00 failed ID not in flight"))
    + frames.error(ProtocolError("E_BAD_PROTOCOL"))
    + MESSAGE
    + frames.response(b"")
)
STREAM_FRAMES: list[Frame] = [
    ResponseFrame(b"OK"),
    ResponseFrame(b"_heartbeat_"),
    ErrorFrame("E_FIN_FAILED", "FIN 00 failed ID not in flight"),
    ErrorFrame("E_BAD_PROTOCOL", ""),
    MessageFrame(TIMESTAMP_NS, 1, b"004000000000abcf", b"hi"),
    ResponseFrame(b""),
]


def read_all(reader: FrameReader) -> list[Frame]:
    return list(iter(reader.next_frame, None))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_read_however_they_are_split(size: int) -> None:
    reader = FrameReader()
    received = []
    for start in range(0, len(STREAM), size):
        reader.receive_data(STREAM[start : start + size])
        received += read_all(reader)

    assert STREAM_FRAMES == received


def test_a_frame_is_returned_as_soon_as_it_is_complete() -> None:
    reader = FrameReader()
    reader.receive_data(frames.OK * 2 + frames.OK[:9])

    assert [ResponseFrame(b"OK")] * 2 == read_all(reader)

    reader.receive_data(frames.OK[9:])

    assert [ResponseFrame(b"OK")] == read_all(reader)


def test_an_incomplete_frame_can_be_taken_out() -> None:
    reader = FrameReader()
    reader.receive_data(frames.OK + frames.OK[:5])

    assert [ResponseFrame(b"OK")] == read_all(reader)
    assert frames.OK[:5] == reader.take_unread()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "size 3 out of range 4-100"),
        (b"\x00\x00\x00\x65\x00\x00\x00\x00", "size 101 out of range 4-100"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "size -1 out of range 4-100"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x03", "type 3 is unknown"),
        (b"\x00\x00\x00\x04\xff\xff\xff\xff", "type -1 is unknown"),
        (b"\x00\x00\x00\x0eE_BAD_PROTOCOL", "it is the TCP port of nsqlookupd, which is for nsqd"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02hi", "message of 2 bytes is too short"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it is HTTP, which has another port"),
    ],
)
def test_an_invalid_frame_is_refused(raw: bytes, reason: str) -> None:
    reader = FrameReader(size_max=100)
    reader.receive_data(raw)
    with pytest.raises(ProtocolError) as caught:
        reader.next_frame()

    assert f"E_INVALID not a frame: {reason}" == str(caught.value)


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_raise_anything_but_a_protocol_error(chunks: list[bytes]) -> None:
    reader = FrameReader(size_max=100)
    for chunk in chunks:
        reader.receive_data(chunk)
        try:
            read_all(reader)
        except ProtocolError:
            return
