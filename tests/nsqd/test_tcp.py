"""The TCP protocol, byte by byte, with a running nsqd.

Each case has the bytes that a client sends, the bytes that it gets, and whether the connection
stays open. The tests compare only bytes, so that they find mistakes that both sides of
`penstock.protocol` share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import pack

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd

# Small limits, so that inputs that exceed them are small.
FLAGS = ("--max-msg-size=1000", "--max-body-size=5000")

MAGIC = b"  V2"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd(*FLAGS) as process:
        yield process


@pytest.fixture(scope="module")
def careful_nsqd() -> Iterator[NsqdProcess]:
    """Responds to a publish after its fsync."""
    with run_nsqd(*FLAGS, "--sync-every=1") as process:
        yield process


@dataclass(frozen=True)
class Case:
    """The response to `sent` is `answer`, and then the connection stays open or closes."""

    name: str
    sent: bytes
    answer: bytes
    stays_open: bool = False

    def __str__(self) -> str:
        return self.name


def response(text: bytes) -> bytes:
    return pack(">ii", len(text) + 4, 0) + text


def error(text: bytes) -> bytes:
    return pack(">ii", len(text) + 4, 1) + text


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def int32(number: int) -> bytes:
    return pack(">i", number)


def multi(*bodies: bytes) -> bytes:
    """The body of a multi-publish."""
    return sized(int32(len(bodies)) + b"".join(map(sized, bodies)))


OK = response(b"OK")
SUB = b"SUB tcp-table ch\n"
ID = b"0123456789abcdef"

# A command with a response, to show that the connection is open.
ALIVE = b"PUB alive\n" + sized(b"x")


def ok(name: str, sent: bytes, answer: bytes = OK) -> Case:
    return Case(name, sent, answer, stays_open=True)


def fatal(name: str, sent: bytes, text: bytes, *, before: bytes = b"") -> Case:
    return Case(name, sent, before + error(text))


LINES = [
    ok("NOP is not answered", b"NOP\n", b""),
    ok("one carriage return before the newline is dropped", b"NOP\r\n", b""),
    ok("surplus parameters are ignored", b"PUB t more and more\n" + sized(b"x")),
    ok("an empty surplus parameter is ignored", b"PUB t \n" + sized(b"x")),
    ok("a line may have 16384 bytes", b"NOP " + b"x" * 16379 + b"\n", b""),
    Case("a line of 16385 bytes ends all", b"NOP " + b"x" * 16380 + b"\n", b""),
    Case("a line that never ends does, too", b"x" * 16384, b""),
    Case("what came before it is answered", ALIVE + b"x" * 16384, OK),
    fatal("unknown command", b"HELLO\n", b"E_INVALID invalid command HELLO"),
    fatal("the case of a command counts", b"pub t\n", b"E_INVALID invalid command pub"),
    fatal("empty line", b"\n", b"E_INVALID invalid command "),
    fatal("line with a carriage return only", b"\r\n", b"E_INVALID invalid command "),
    fatal("two carriage returns", b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    fatal("space before the command", b" NOP\n", b"E_INVALID invalid command "),
    fatal("bytes that are no text", b"\xff\x00\n", b"E_INVALID invalid command \xff\x00"),
    fatal("what came before the error is answered", ALIVE + b"X\n" + ALIVE,
          b"E_INVALID invalid command X", before=OK),
]  # fmt: skip

PUBLISHING = [
    ok("PUB", b"PUB t\n" + sized(b"body")),
    ok("PUB while subscribed", SUB + b"PUB t\n" + sized(b"x"), OK + OK),
    ok("PUB of the largest message", b"PUB t\n" + sized(b"x" * 1000)),
    ok("PUB to a name of 64 bytes", b"PUB " + b"n" * 64 + b"\n" + sized(b"x")),
    ok("PUB to a name of dots", b"PUB ..\n" + sized(b"x")),
    ok("MPUB", b"MPUB t\n" + multi(b"one", b"two")),
    ok("MPUB whose body size is too small",
       b"MPUB t\n" + int32(1) + int32(2) + sized(b"one") + sized(b"two")),
    ok("MPUB whose body size is too large leaves the rest to be read as commands",
       b"MPUB t\n" + int32(4000) + int32(1) + sized(b"one") + ALIVE, OK + OK),
    ok("DPUB", b"DPUB t 100\n" + sized(b"x")),
    ok("DPUB for the longest time", b"DPUB t 3600000\n" + sized(b"x")),
    ok("DPUB with an empty time", b"DPUB t \n" + sized(b"x")),
    ok("DMPUB", b"DMPUB t 100\n" + multi(b"one", b"two")),
    ok("DMPUB with an empty time", b"DMPUB t \n" + multi(b"one")),
    fatal("PUB without a topic", b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    fatal("MPUB without a topic", b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    fatal("DPUB without a topic", b"DPUB\n", b"E_INVALID DPUB insufficient number of parameters"),
    fatal("DPUB without a time", b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    fatal("DMPUB without a time", b"DMPUB t\n",
          b"E_INVALID DMPUB insufficient number of parameters"),
    fatal("PUB to a bad name", b"PUB a$b\n", b'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    fatal("PUB to no name", b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    fatal("PUB to a name of 65 bytes", b"PUB " + b"n" * 65 + b"\n",
          b'E_BAD_TOPIC PUB topic name "' + b"n" * 65 + b'" is not valid'),
    fatal("PUB to a name to be quoted", b'PUB \t"\\\x01\xff\xc3\xa9\n',
          b'E_BAD_TOPIC PUB topic name "\\t\\"\\\\\\x01\\xff\xc3\xa9" is not valid'),
    fatal("MPUB to a bad name has its code twice", b"MPUB a$b\n",
          b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
    fatal("DPUB to a bad name", b"DPUB a$b 1\n",
          b'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
    fatal("DMPUB to a bad name", b"DMPUB a$b 1\n",
          b'E_BAD_TOPIC DMPUB topic name "a$b" is not valid'),
    fatal("DPUB whose time is no number", b"DPUB t soon\n",
          b"E_INVALID DPUB could not parse timeout soon"),
    fatal("DPUB whose time has a sign", b"DPUB t -1\n",
          b"E_INVALID DPUB could not parse timeout -1"),
    fatal("DPUB for too long", b"DPUB t 3600001\n",
          b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    fatal("DMPUB for too long", b"DMPUB t 3600001\n",
          b"E_INVALID DMPUB timeout 3600001 out of range 0-3600000"),
    fatal("PUB of size 0", b"PUB t\n" + int32(0),
          b"E_BAD_MESSAGE PUB invalid message body size 0"),
    fatal("PUB of a negative size", b"PUB t\n" + int32(-1),
          b"E_BAD_MESSAGE PUB invalid message body size -1"),
    fatal("PUB of too large a message", b"PUB t\n" + int32(1001),
          b"E_BAD_MESSAGE PUB message too big 1001 > 1000"),
    fatal("DPUB of size 0", b"DPUB t 1\n" + int32(0),
          b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    fatal("DPUB of too large a message", b"DPUB t 1\n" + int32(1001),
          b"E_BAD_MESSAGE DPUB message too big 1001 > 1000"),
    fatal("MPUB of size 0", b"MPUB t\n" + int32(0), b"E_BAD_BODY MPUB invalid body size 0"),
    fatal("MPUB of a negative size", b"MPUB t\n" + int32(-2),
          b"E_BAD_BODY MPUB invalid body size -2"),
    fatal("MPUB of too large a body", b"MPUB t\n" + int32(5001),
          b"E_BAD_BODY MPUB body too big 5001 > 5000"),
    fatal("MPUB of no message", b"MPUB t\n" + int32(4) + int32(0),
          b"E_BAD_BODY MPUB invalid message count 0"),
    fatal("MPUB of a negative count", b"MPUB t\n" + int32(4) + int32(-1),
          b"E_BAD_BODY MPUB invalid message count -1"),
    fatal("MPUB of more than its body can hold", b"MPUB t\n" + int32(4) + int32(1000),
          b"E_BAD_BODY MPUB invalid message count 1000"),
    fatal("MPUB of an empty message", b"MPUB t\n" + multi(b"one", b""),
          b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    fatal("MPUB of a message of a negative size", b"MPUB t\n" + int32(8) + int32(1) + int32(-7),
          b"E_BAD_MESSAGE MPUB invalid message(0) body size -7"),
    fatal("MPUB of too large a message", b"MPUB t\n" + multi(b"x" * 1001),
          b"E_BAD_MESSAGE MPUB message too big 1001 > 1000"),
    fatal("DMPUB of size 0", b"DMPUB t 1\n" + int32(0), b"E_BAD_BODY DMPUB invalid body size 0"),
    fatal("DMPUB of an empty message", b"DMPUB t 1\n" + multi(b""),
          b"E_BAD_MESSAGE DMPUB invalid message(0) body size 0"),
]  # fmt: skip

CONSUMING = [
    ok("SUB", SUB),
    ok("SUB to an ephemeral channel", b"SUB tcp-table ch#ephemeral\n"),
    fatal("SUB twice", SUB + SUB, b"E_INVALID cannot SUB in current state", before=OK),
    fatal("SUB after CLS", SUB + b"CLS\n" + SUB, b"E_INVALID cannot SUB in current state",
          before=OK + response(b"CLOSE_WAIT")),
    fatal("SUB without heartbeats", b"IDENTIFY\n" + sized(b'{"heartbeat_interval":-1}') + SUB,
          b"E_INVALID cannot SUB with heartbeats disabled", before=OK),
    fatal("SUB without a channel", b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    fatal("SUB without anything", b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    fatal("SUB to a bad topic", b"SUB a$b ch\n",
          b'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
    fatal("SUB with two spaces", b"SUB  t ch\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    fatal("SUB to a bad channel", b"SUB t a$b\n",
          b'E_BAD_CHANNEL SUB channel name "a$b" is not valid'),
    ok("RDY", SUB + b"RDY 5\n"),
    ok("RDY 0", SUB + b"RDY 0\n"),
    ok("RDY of the largest count", SUB + b"RDY 2500\n"),
    ok("RDY without a count", SUB + b"RDY\n"),
    ok("RDY with an empty count", SUB + b"RDY \n"),
    ok("RDY after CLS is ignored, whatever it says", SUB + b"CLS\n" + b"RDY 9999\n",
       OK + response(b"CLOSE_WAIT")),
    fatal("RDY before SUB", b"RDY 1\n", b"E_INVALID cannot RDY in current state"),
    fatal("RDY of no number", SUB + b"RDY many\n", b"E_INVALID RDY could not parse count many",
          before=OK),
    fatal("RDY of a negative count", SUB + b"RDY -1\n", b"E_INVALID RDY could not parse count -1",
          before=OK),
    fatal("RDY of too large a count", SUB + b"RDY 2501\n",
          b"E_INVALID RDY count 2501 out of range 0-2500", before=OK),
    fatal("FIN before SUB", b"FIN " + ID + b"\n", b"E_INVALID cannot FIN in current state"),
    fatal("FIN without an id", SUB + b"FIN\n", b"E_INVALID FIN insufficient number of params",
          before=OK),
    fatal("FIN of a short id", SUB + b"FIN 0123\n", b"E_INVALID invalid message ID", before=OK),
    fatal("FIN of a long id", SUB + b"FIN " + ID + b"0\n", b"E_INVALID invalid message ID",
          before=OK),
    ok("FIN of an unknown id", SUB + b"FIN " + ID + b"\n",
       OK + error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")),
    ok("FIN of an id that is no number", SUB + b"FIN ZZZZZZZZZZZZZZZZ\n",
       OK + error(b"E_FIN_FAILED FIN ZZZZZZZZZZZZZZZZ failed ID not in flight")),
    ok("FIN of an id that is no text", SUB + b"FIN \xff\xc3\xa9ZZZZZZZZZZZZ\x00\n",
       OK + error(b"E_FIN_FAILED FIN \xff\xc3\xa9ZZZZZZZZZZZZ\x00 failed ID not in flight")),
    ok("two FINs of unknown ids", SUB + 2 * (b"FIN " + ID + b"\n"),
       OK + 2 * error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")),
    ok("FIN after CLS", SUB + b"CLS\n" + b"FIN " + ID + b"\n",
       OK + response(b"CLOSE_WAIT")
       + error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")),
    fatal("REQ before SUB", b"REQ " + ID + b" 0\n", b"E_INVALID cannot REQ in current state"),
    fatal("REQ without a time", SUB + b"REQ " + ID + b"\n",
          b"E_INVALID REQ insufficient number of params", before=OK),
    fatal("REQ of a short id", SUB + b"REQ 0123 0\n", b"E_INVALID invalid message ID", before=OK),
    fatal("REQ whose time is no number", SUB + b"REQ " + ID + b" soon\n",
          b"E_INVALID REQ could not parse timeout soon", before=OK),
    fatal("REQ whose time has a sign", SUB + b"REQ " + ID + b" -1\n",
          b"E_INVALID REQ could not parse timeout -1", before=OK),
    ok("REQ of an unknown id", SUB + b"REQ " + ID + b" 0\n",
       OK + error(b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight")),
    ok("REQ for too long is no mistake", SUB + b"REQ " + ID + b" 99999999999\n",
       OK + error(b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight")),
    fatal("TOUCH before SUB", b"TOUCH " + ID + b"\n", b"E_INVALID cannot TOUCH in current state"),
    fatal("TOUCH without an id", SUB + b"TOUCH\n",
          b"E_INVALID TOUCH insufficient number of params", before=OK),
    fatal("TOUCH of a short id", SUB + b"TOUCH 0123\n", b"E_INVALID invalid message ID",
          before=OK),
    ok("TOUCH of an unknown id", SUB + b"TOUCH " + ID + b"\n",
       OK + error(b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight")),
    ok("CLS", SUB + b"CLS\n", OK + response(b"CLOSE_WAIT")),
    fatal("CLS before SUB", b"CLS\n", b"E_INVALID cannot CLS in current state"),
    fatal("CLS twice", SUB + b"CLS\nCLS\n", b"E_INVALID cannot CLS in current state",
          before=OK + response(b"CLOSE_WAIT")),
]  # fmt: skip

AUTH = [
    fatal("AUTH where there is none", b"AUTH\n" + sized(b"secret"),
          b"E_AUTH_DISABLED AUTH disabled"),
    fatal("AUTH after SUB", SUB + b"AUTH\n" + sized(b"secret"),
          b"E_INVALID cannot AUTH in current state", before=OK),
    fatal("AUTH with a parameter", b"AUTH secret\n",
          b"E_INVALID AUTH invalid number of parameters"),
    fatal("AUTH of size 0", b"AUTH\n" + int32(0), b"E_BAD_BODY AUTH invalid body size 0"),
    fatal("AUTH of too large a body", b"AUTH\n" + int32(5001),
          b"E_BAD_BODY AUTH body too big 5001 > 5000"),
]  # fmt: skip

# The stream ends inside a body.
BROKEN_OFF = [
    fatal("PUB inside the size", b"PUB t\n\0\0",
          b"E_BAD_MESSAGE PUB failed to read message body size"),
    fatal("PUB inside the message", b"PUB t\n" + int32(10) + b"half",
          b"E_BAD_MESSAGE PUB failed to read message body"),
    fatal("DPUB inside the message", b"DPUB t 1\n" + int32(10) + b"half",
          b"E_BAD_MESSAGE DPUB failed to read message body"),
    fatal("MPUB inside the body size", b"MPUB t\n\0",
          b"E_BAD_BODY MPUB failed to read body size"),
    fatal("MPUB inside the count", b"MPUB t\n" + int32(20) + b"\0\0",
          b"E_BAD_BODY MPUB failed to read message count"),
    fatal("MPUB inside a size", b"MPUB t\n" + int32(20) + int32(2) + sized(b"one") + b"\0",
          b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    fatal("MPUB inside a message", b"MPUB t\n" + int32(20) + int32(1) + int32(9) + b"half",
          b"E_BAD_MESSAGE MPUB failed to read message body"),
    fatal("IDENTIFY inside the size", b"IDENTIFY\n\0",
          b"E_BAD_BODY IDENTIFY failed to read body size"),
    fatal("IDENTIFY inside the JSON", b"IDENTIFY\n" + int32(9) + b"{",
          b"E_BAD_BODY IDENTIFY failed to read body"),
    fatal("AUTH inside the size", b"AUTH\n", b"E_BAD_BODY AUTH failed to read body size"),
    fatal("AUTH inside the secret", b"AUTH\n" + int32(9) + b"s",
          b"E_BAD_BODY AUTH failed to read body"),
    fatal("after a command that was complete", ALIVE + b"PUB t\n" + int32(10) + b"half",
          b"E_BAD_MESSAGE PUB failed to read message body", before=OK),
    Case("between two commands", ALIVE, OK),
    Case("inside a line", ALIVE + b"PUB t", OK),
    Case("before the first command", b"", b""),
]  # fmt: skip

EVERYTHING_ELSE = [*LINES, *PUBLISHING, *CONSUMING, *AUTH]


@pytest.mark.parametrize("case", EVERYTHING_ELSE, ids=str)
def test_command_is_answered(nsqd: NsqdProcess, case: Case) -> None:
    with nsqd.connect() as client:
        client.send(case.sent)
        if case.stays_open:
            client.send(ALIVE)

            assert case.answer + OK == client.read(len(case.answer + OK))
        else:
            assert case.answer == client.read_to_end()


@pytest.mark.parametrize("case", BROKEN_OFF, ids=str)
def test_stream_that_ends_is_answered(nsqd: NsqdProcess, case: Case) -> None:
    with nsqd.connect() as client:
        client.send(case.sent)
        client.end_sending()

        assert case.answer == client.read_to_end()


@pytest.mark.parametrize("opening", [b"  V1", b"  v2", b" V2 ", b"GET / HTTP/1.1\r\n\r\n"])
def test_other_protocol_is_refused(nsqd: NsqdProcess, opening: bytes) -> None:
    with nsqd.connect(opening=opening) as client:
        assert error(b"E_BAD_PROTOCOL") == client.read_to_end()


def test_error_can_be_read_while_the_client_keeps_sending(nsqd: NsqdProcess) -> None:
    """If nsqd closed the connection with unread bytes, it would be reset, and the error lost."""
    with nsqd.connect() as client:
        client.send(b"PUB t\n" + int32(1_000_000) + b"x" * 1_000_000)

        assert error(b"E_BAD_MESSAGE PUB message too big 1000000 > 1000") == client.read_to_end()


def test_magic_may_come_in_pieces(nsqd: NsqdProcess) -> None:
    with nsqd.connect(opening=b" ") as client:
        for piece in (b" ", b"V", b"2" + ALIVE):
            client.send(piece)

        assert OK == client.read(len(OK))


def test_connection_may_stay_silent_before_the_magic(nsqd: NsqdProcess) -> None:
    with nsqd.connect(opening=b"") as client:
        assert client.is_silent(seconds=0.2)

        client.send(MAGIC + ALIVE)

        assert OK == client.read(len(OK))


def test_commands_may_come_byte_by_byte(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        for byte in b"PUB t\n" + sized(b"one") + b"MPUB t\n" + multi(b"two", b"three") + b"BAD\n":
            client.send(bytes([byte]))

        assert OK + OK + error(b"E_INVALID invalid command BAD") == client.read_to_end()


def test_every_command_of_one_write_is_answered_in_order(nsqd: NsqdProcess) -> None:
    rounds = 500
    sent = b"PUB a\n" + sized(b"x") + b"PUB b\n" + sized(b"x") + b"MPUB a\n" + multi(b"x", b"y")
    with nsqd.connect() as client:
        client.send(sent * rounds)

        assert OK * 3 * rounds == client.read(len(OK) * 3 * rounds)


def test_a_bad_mpub_body_still_creates_the_topic(nsqd: NsqdProcess) -> None:
    """NSQ creates the topic before it reads the body."""
    with nsqd.connect() as client:
        client.send(b"MPUB made-in-vain\n" + int32(4) + int32(0))
        client.read_to_end()

    assert 0 == nsqd.stats("made-in-vain")["message_count"]


def test_bad_message_in_mpub_stores_none(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as client:
        client.send(b"MPUB all-or-nothing\n" + multi(b"good", b"good", b""))
        client.read_to_end()

    assert 0 == nsqd.stats("all-or-nothing")["message_count"]


def test_consumers_of_a_channel_can_be_limited() -> None:
    with run_nsqd("--max-channel-consumers=1") as nsqd:
        first, second = nsqd.connect(), nsqd.connect()
        first.send(b"SUB t c\n")
        assert OK == first.read(len(OK))

        second.send(b"SUB t c\n")

        expected = error(b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")
        assert expected == second.read_to_end()


def test_a_protocol_error_does_not_affect_other_clients(nsqd: NsqdProcess) -> None:
    with nsqd.connect() as good, nsqd.connect() as bad:
        bad.send(b"NONSENSE\n")
        bad.read_to_end()
        good.send(ALIVE)

        assert OK == good.read(len(OK))


def test_publishes_are_answered_in_order_when_each_waits_for_its_fsync(
    careful_nsqd: NsqdProcess,
) -> None:
    rounds = 200
    publish = b"PUB a\n" + sized(b"x") + b"MPUB b\n" + multi(b"x", b"y")
    with careful_nsqd.connect() as client:
        client.send(publish * rounds + b"BAD\n")

        expected = OK * 2 * rounds + error(b"E_INVALID invalid command BAD")
        assert expected == client.read_to_end()
        assert 2 * rounds == careful_nsqd.stats("b")["message_count"]


@pytest.mark.parametrize("case", BROKEN_OFF, ids=str)
def test_stream_that_ends_is_answered_after_pending_fsyncs(
    careful_nsqd: NsqdProcess, case: Case
) -> None:
    with careful_nsqd.connect() as client:
        client.send(case.sent)
        client.end_sending()

        assert case.answer == client.read_to_end()


def test_unix_socket_is_served(tmp_path: Path) -> None:
    path = f"{tmp_path}/nsqd.sock"
    with run_nsqd(f"--tcp-address={path}") as nsqd:
        assert path == nsqd.tcp_address
        client = nsqd.connect()
        client.send(b"PUB t\n" + sized(b"x") + b"SUB t c\nRDY 1\n")

        assert OK + OK == client.read(2 * len(OK))
        assert b"x" == client.message().body
