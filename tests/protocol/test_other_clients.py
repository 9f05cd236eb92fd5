"""pynsq and gnsq send the same commands as our client, and can read our frames."""

import gnsq.protocol as gnsq
import nsq.protocol as pynsq
import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import commands, frames
from penstock.protocol.events import Identify, Limits
from penstock.protocol.identify import IdentifyRequest, parse_identify
from penstock.protocol.server import ServerConnection

pytestmark = pytest.mark.interop

ID = b"0123456789abcdef"
BODY = bytes(range(256))
SIZE_BYTES = 4


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (commands.MAGIC, pynsq.MAGIC_V2),
        (commands.sub("topic", "channel"), pynsq.subscribe("topic", "channel")),
        (commands.pub("topic", BODY), pynsq.pub("topic", BODY)),
        (commands.mpub("topic", [BODY, b"x"]), pynsq.mpub("topic", [BODY, b"x"])),
        (commands.dpub("topic", 1500, BODY), pynsq.dpub("topic", 1500, BODY)),
        (commands.rdy(7), pynsq.ready(7)),
        (commands.fin(ID), pynsq.finish(ID)),
        (commands.req(ID, 1500), pynsq.requeue(ID, 1500)),
        (commands.touch(ID), pynsq.touch(ID)),
        (commands.nop(), pynsq.nop()),
        (commands.auth(b"secret"), pynsq.auth(b"secret")),
        (commands.MAGIC, gnsq.MAGIC_V2),
        (commands.sub("topic", "channel"), gnsq.subscribe("topic", "channel")),
        (commands.pub("topic", BODY), gnsq.publish("topic", BODY)),
        (commands.mpub("topic", [BODY, b"x"]), gnsq.multipublish("topic", [BODY, b"x"])),
        (commands.dpub("topic", 1500, BODY), gnsq.deferpublish("topic", BODY, 1500)),
        (commands.rdy(7), gnsq.ready(7)),
        (commands.fin(ID), gnsq.finish(ID)),
        (commands.req(ID, 1500), gnsq.requeue(ID, 1500)),
        (commands.touch(ID), gnsq.touch(ID)),
        (commands.cls(), gnsq.close()),
        (commands.nop(), gnsq.nop()),
        (commands.auth(b"secret"), gnsq.auth(b"secret")),
    ],
)
def test_all_clients_render_a_command_the_same(ours: bytes, theirs: bytes) -> None:
    assert ours == theirs


@pytest.mark.parametrize("identify", [pynsq.identify, gnsq.identify])
def test_their_identify_is_understood(identify: object) -> None:
    assert callable(identify)
    server = ServerConnection(Limits())
    server.receive_data(commands.MAGIC + identify({"client_id": "é", "sample_rate": 5}))
    event = server.next_event()

    assert isinstance(event, Identify)
    assert IdentifyRequest(client_id="é", sample_rate=5) == parse_identify(event.body)


@pytest.mark.parametrize("unpack", [pynsq.unpack_response, gnsq.unpack_response])
def test_our_frames_are_read_by_them(unpack: object) -> None:
    assert callable(unpack)
    refusal = frames.error(ProtocolError("E_INVALID", "no"))

    assert (frames.FRAME_RESPONSE, b"OK") == unpack(frames.OK[SIZE_BYTES:])
    assert (frames.FRAME_ERROR, b"E_INVALID no") == unpack(refusal[SIZE_BYTES:])


def test_our_messages_are_read_by_them() -> None:
    (frame,) = frames.render_messages([BODY], int(ID, 16), 1_700_000_000_000_000_000)
    frame = frames.with_attempts(frame, 300)
    kind, data = pynsq.unpack_response(frame[SIZE_BYTES:])
    message = pynsq.decode_message(data)

    assert frames.FRAME_MESSAGE == kind
    assert (ID, BODY) == (message.id, message.body)
    assert (1_700_000_000_000_000_000, 300) == (message.timestamp, message.attempts)
    assert (message.timestamp, 300, ID, BODY) == gnsq.unpack_message(data)
