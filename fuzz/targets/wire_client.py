"""A server's frames, as a client parses them, from the response to IDENTIFY on.

All cuts of the bytes give the same events. Frames that are parsed and rendered again are the same
bytes.
"""

import struct
from typing import Any

from fuzz.cutting import Pieces, cuttings
from penstock.common.errors import CorruptStreamError, ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.client import (
    ClientConnection,
    CloseWait,
    Confirmed,
    Delivered,
    Event,
    Opened,
    Opening,
    Rejected,
)
from penstock.protocol.compression import Deflate, Snappy
from penstock.protocol.frames import ErrorFrame, Frame, FrameReader, MessageFrame, ResponseFrame

__all__ = ["SEEDS", "TOKENS", "check"]

FRAME_BYTES_MAX = 200
PUBLISHES = 3

OPENING = Opening(
    features={"snappy": True, "deflate": True},
    auth_secret=b"secret",
    topic="t",
    channel="c",
    make_compression={"snappy": lambda _level: Snappy(), "deflate": Deflate},
)

MESSAGES = b"".join(frames.render_messages([b"one", b"two"], 0xABC, 1_700_000_000_000_000_000))
REFUSAL = frames.error(ProtocolError("E_FIN_FAILED", "FIN 0123456789abcdef failed"))


def compressed(name: bytes, layer: Snappy | Deflate) -> bytes:
    plain = frames.OK + frames.OK + MESSAGES + frames.OK
    return frames.response(b'{"%b":true}' % name) + layer.encode(plain)


SEEDS = [
    frames.OK + frames.OK + MESSAGES + frames.HEARTBEAT + frames.OK + frames.CLOSE_WAIT,
    frames.OK + frames.OK + REFUSAL + frames.OK * 2,
    frames.OK + frames.error(ProtocolError("E_BAD_TOPIC")),
    frames.response(b'{"auth_required":true,"max_rdy_count":9}') + frames.OK * 3,
    compressed(b"snappy", Snappy()),
    compressed(b"deflate", Deflate()),
    b"HTTP/1.1 400 Bad Request\r\n",
]
TOKENS = [frames.OK, frames.HEARTBEAT, frames.CLOSE_WAIT, b"_heartbeat_", b'"deflate":true']


def check(data: bytes) -> None:
    heard = [said for pieces in cuttings(data) if (said := maybe_converse(pieces)) is not None]
    for other in heard[1:]:
        assert other == heard[0], f"cut otherwise: {other}, before: {heard[0]}"
    check_frames(data)


def maybe_converse(pieces: Pieces) -> list[Any] | None:
    """The events, and the bytes that the client sent. None if a layer cannot be decoded: valid data
    in one piece with the damage may then be lost.
    """
    connection: ClientConnection[MessageFrame, int] = ClientConnection(
        OPENING, MessageFrame, frame_bytes_max=FRAME_BYTES_MAX
    )
    said: list[Any] = []
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) is not None:
                said += said_by(event)
                if isinstance(event, Opened):
                    for receipt in range(PUBLISHES):
                        connection.publish(commands.pub("t", b"x"), receipt)
    except ProtocolError as error:
        said.append(("error", str(error)))
    except CorruptStreamError:
        return None
    return [*said, connection.unconfirmed, connection.data_to_send()]


def said_by(event: Event[MessageFrame, int]) -> list[Any]:
    match event:
        case Delivered(messages):
            return list(messages)
        case Confirmed(receipts):
            return list(receipts)
        case Rejected(error, receipt):
            return [(str(error), error.fatal, receipt)]
        case Opened() | CloseWait():
            return [event]


def check_frames(data: bytes) -> None:
    read = read_frames(data)
    rendered = b"".join(map(render, read))
    assert read == read_frames(rendered)
    if not any(isinstance(frame, ErrorFrame) for frame in read):
        # Not with an error frame: a space before an empty detail is dropped.
        assert data.startswith(rendered), rendered


def read_frames(data: bytes) -> list[Frame]:
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.receive_data(data)
    read: list[Frame] = []
    try:
        while (frame := reader.next_frame()) is not None:
            read.append(frame)
    except ProtocolError:
        pass
    return read


def render(frame: Frame) -> bytes:
    match frame:
        case ResponseFrame(data):
            return frames.response(data)
        case ErrorFrame(code, detail):
            return frames.error(ProtocolError(code, detail))
        case MessageFrame(timestamp_ns, attempts, id, body):
            header = struct.pack(">qH16s", timestamp_ns, attempts, id)
            return struct.pack(">ii", len(header + body) + 4, frames.FRAME_MESSAGE) + header + body
