"""The server side of a connection, without sockets.

Each case runs whole, byte by byte and in other pieces, with the same `Outcome`: the commands, taken
out of their batches, and then the end.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.common.errors import LineTooLongError, ProtocolError
from penstock.protocol import commands
from penstock.protocol.command_cache import CACHED_LINE_BYTES_MAX, LINES_MAX, CommandCache
from penstock.protocol.command_table import COMMANDS
from penstock.protocol.events import (
    LINE_BYTES_MAX,
    Auth,
    Cls,
    Event,
    Fin,
    Identify,
    Limits,
    Nop,
    Publish,
    Rdy,
    Req,
    State,
    Sub,
    TopicNamed,
    Touch,
)
from penstock.protocol.server import ServerConnection

ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"
ODD_ID = b"not*hex*16*bytes"
LIMITS = Limits(max_msg_size=100, max_body_size=250, max_rdy_count=2500, max_req_timeout_ms=3600000)
ALL_STATES = (State.INIT, State.SUBSCRIBED, State.CLOSING)


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


def connection(state: State = State.INIT, limits: Limits = LIMITS) -> ServerConnection:
    made = ServerConnection(limits)
    made.receive_data(commands.MAGIC)
    if state >= State.SUBSCRIBED:
        made.receive_data(commands.sub("topic", "channel"))
    if state is State.CLOSING:
        made.receive_data(commands.cls())
    list(drain(made))

    assert state is made.state
    return made


def drain(server: ServerConnection) -> Iterator[Event]:
    return iter(server.next_event, None)


class Outcome(NamedTuple):
    """The result of some bytes."""

    commands: list[Event]
    state: State
    end: str
    """The error, also one at the end of the stream, or nothing."""


def outcome_of(
    chunks: Iterable[bytes], server: ServerConnection, *, short_way: bool = False
) -> Outcome:
    understood: list[Event] = []
    end = ""
    try:
        for chunk in chunks:
            if short_way and (only := server.parse_single(chunk)) is not None:
                understood += singly(only)
                continue
            server.receive_data(chunk)
            for event in drain(server):
                understood += singly(event)
        server.receive_eof()
    except ProtocolError as error:
        end = str(error) if error.fatal else "an error that is not fatal"
    except LineTooLongError:
        end = "line too long"
    assert server.next_event() is None
    return Outcome(understood, server.state, end)


def singly(event: Event) -> list[Event]:
    """The commands of a batch, one by one."""
    match event:
        case Fin(ids):
            return [Fin([each]) for each in ids]
        case Publish(topic, bodies, oks, "PUB" | "DPUB" as word, defer_ms):
            assert oks == len(bodies)
            return [Publish(topic, [body], 1, word, defer_ms) for body in bodies]
        case TopicNamed():
            return []
        case _:
            return [event]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), max(size, 1))]


def check(data: bytes, expected: Outcome, make: Callable[[], ServerConnection]) -> None:
    """The result is the same whole, byte by byte, and in other pieces."""
    for size in (len(data), 1, 2, 3, 5, 16):
        assert expected == outcome_of(pieces(data, size), make())
    assert expected == outcome_of([data], make(), short_way=True)


# Valid commands -----------------------------------------------------------------------------------

UNDERSTOOD: list[tuple[State, bytes, list[Event]]] = [
    (State.INIT, b"IDENTIFY\n\x00\x00\x00\x02{}", [Identify(b"{}")]),
    (State.INIT, b"IDENTIFY surplus\n\x00\x00\x00\x02{}", [Identify(b"{}")]),
    (State.INIT, b"IDENTIFY\n\x00\x00\x00\x01\n" * 2, [Identify(b"\n"), Identify(b"\n")]),
    (State.INIT, b"AUTH\n\x00\x00\x00\x06secret", [Auth(b"secret")]),
    (State.INIT, b"SUB t c\n", [Sub("t", "c")]),
    (State.INIT, b"SUB t#ephemeral c#ephemeral x y\n", [Sub("t#ephemeral", "c#ephemeral")]),
    (State.INIT, b"SUB . ..\n", [Sub(".", "..")]),
    (State.INIT, b"NOP\nNOP\r\nNOP surplus\n", [Nop(), Nop(), Nop()]),
    (State.INIT, b"PUB t\n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "PUB")]),
    (State.INIT, b"PUB t\r\n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "PUB")]),
    (State.INIT, b"PUB t surplus \n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "PUB")]),
    (State.INIT, b"PUB t\n\x00\x00\x00\x01\n", [Publish("t", [b"\n"], 1, "PUB")]),
    (
        State.INIT,
        b"PUB t\n" + int32(100) + b"x" * 100,
        [Publish("t", [b"x" * 100], 1, "PUB")],
    ),
    (
        State.INIT,
        commands.pub("t", b"a") + commands.pub("t", b"bb") + commands.pub("u", b"ccc"),
        [
            Publish("t", [b"a"], 1, "PUB"),
            Publish("t", [b"bb"], 1, "PUB"),
            Publish("u", [b"ccc"], 1, "PUB"),
        ],
    ),
    # A body may contain anything.
    (
        State.INIT,
        commands.pub("t", commands.pub("t", b"inner")) + commands.nop(),
        [Publish("t", [commands.pub("t", b"inner")], 1, "PUB"), Nop()],
    ),
    (State.INIT, b"DPUB t 0\n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "DPUB", 0)]),
    (State.INIT, b"DPUB t \n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "DPUB", 0)]),
    (State.INIT, b"DPUB t  7\n\x00\x00\x00\x02hi", [Publish("t", [b"hi"], 1, "DPUB", 0)]),
    (
        State.INIT,
        b"DPUB t 3600000 surplus\n\x00\x00\x00\x02hi",
        [Publish("t", [b"hi"], 1, "DPUB", 3600000)],
    ),
    (
        State.INIT,
        commands.dpub("t", 5, b"a") * 2 + commands.dpub("t", 6, b"a"),
        [
            Publish("t", [b"a"], 1, "DPUB", 5),
            Publish("t", [b"a"], 1, "DPUB", 5),
            Publish("t", [b"a"], 1, "DPUB", 6),
        ],
    ),
    (
        State.INIT,
        b"DPUB t 0000000000000000000000000000007\n\x00\x00\x00\x02hi",
        [Publish("t", [b"hi"], 1, "DPUB", 7)],
    ),
    (State.INIT, commands.mpub("t", [b"a"]), [Publish("t", [b"a"], 1, "MPUB")]),
    (
        State.INIT,
        commands.mpub("t", [b"a", b"bb", b"x" * 100]) * 2,
        [Publish("t", [b"a", b"bb", b"x" * 100], 1, "MPUB")] * 2,
    ),
    # The body size only has to be in range: the inner sizes say where the body ends.
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02hiNOP\n",
        [Publish("t", [b"hi"], 1, "MPUB"), Nop()],
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\xfa\x00\x00\x00\x01\x00\x00\x00\x02hiNOP\n",
        [Publish("t", [b"hi"], 1, "MPUB"), Nop()],
    ),
    # As many messages as the largest body holds, (250 - 4) / 5.
    (State.INIT, commands.mpub("t", [b"x"] * 49), [Publish("t", [b"x"] * 49, 1, "MPUB")]),
    (State.INIT, commands.dmpub("t", 9, [b"a", b"b"]), [Publish("t", [b"a", b"b"], 1, "DMPUB", 9)]),
    (State.SUBSCRIBED, b"RDY 0\n", [Rdy(0)]),
    (State.SUBSCRIBED, b"RDY 2500\r\n", [Rdy(2500)]),
    (State.SUBSCRIBED, b"RDY\n", [Rdy(1)]),
    (State.SUBSCRIBED, b"RDY \n", [Rdy(0)]),
    (State.SUBSCRIBED, b"RDY 007 surplus\n", [Rdy(7)]),
    (State.CLOSING, b"RDY 5\n", [Nop()]),
    (State.CLOSING, b"RDY what\n", [Nop()]),
    (State.SUBSCRIBED, b"FIN 0123456789abcdef\n", [Fin([ID])]),
    (State.SUBSCRIBED, b"FIN 0123456789abcdef\r\n", [Fin([ID])]),
    (State.SUBSCRIBED, b"FIN 0123456789abcdef surplus\n", [Fin([ID])]),
    (State.SUBSCRIBED, b"FIN not*hex*16*bytes\n", [Fin([ODD_ID])]),
    (State.CLOSING, b"FIN 0123456789abcdef\n", [Fin([ID])]),
    (
        State.SUBSCRIBED,
        (commands.fin(ID) + commands.fin(OTHER_ID)) * 3
        + commands.rdy(1)
        + commands.fin(ID)
        + commands.fin(ODD_ID)
        + commands.fin(ID),
        [*[Fin([ID]), Fin([OTHER_ID])] * 3, Rdy(1), Fin([ID]), Fin([ODD_ID]), Fin([ID])],
    ),
    (State.SUBSCRIBED, b"REQ 0123456789abcdef 0\n", [Req(ID, 0)]),
    (State.SUBSCRIBED, b"REQ 0123456789abcdef \n", [Req(ID, 0)]),
    (State.SUBSCRIBED, b"REQ 0123456789abcdef 3600000\n", [Req(ID, 3600000)]),
    (State.SUBSCRIBED, b"REQ 0123456789abcdef 3600001\n", [Req(ID, 3600000, clamped=True)]),
    (State.CLOSING, b"REQ 0123456789abcdef 5\n", [Req(ID, 5)]),
    # A longer delay is reduced to the maximum.
    (
        State.SUBSCRIBED,
        b"REQ 0123456789abcdef 18446744073709551615\n",
        [Req(ID, 3600000, clamped=True)],
    ),
    (
        State.SUBSCRIBED,
        b"REQ 0123456789abcdef " + b"9" * 10000 + b"\n",
        [Req(ID, 3600000, clamped=True)],
    ),
    (State.SUBSCRIBED, b"TOUCH 0123456789abcdef\n", [Touch(ID)]),
    (State.CLOSING, b"TOUCH 0123456789abcdef surplus\n", [Touch(ID)]),
    (State.SUBSCRIBED, b"CLS surplus\n", [Cls()]),
    (State.CLOSING, commands.pub("t", b"a"), [Publish("t", [b"a"], 1, "PUB")]),
]

LEADS_TO = {"SUB": State.SUBSCRIBED, "CLS": State.CLOSING}


@pytest.mark.parametrize(("state", "data", "events"), UNDERSTOOD)
def test_a_valid_command_is_parsed(state: State, data: bytes, events: list[Event]) -> None:
    after = LEADS_TO.get(data.split()[0].decode(), state)
    check(data, Outcome(events, after, ""), lambda: connection(state))
    # The bytes after it are another command.
    check(data + b"NOP\n", Outcome([*events, Nop()], after, ""), lambda: connection(state))


# Invalid commands ---------------------------------------------------------------------------------

BIG = str(2**64 - 1)
HUGE = "9" * 10000

REFUSED: list[tuple[State, bytes, str]] = [
    # Unknown commands.
    (State.INIT, b"\n", "E_INVALID invalid command "),
    (State.INIT, b"\r\n", "E_INVALID invalid command "),
    (State.INIT, b" PUB t\n", "E_INVALID invalid command "),
    (State.INIT, b"pub t\n", "E_INVALID invalid command pub"),
    (State.INIT, b"PUB\tt\n", "E_INVALID invalid command PUB\tt"),
    (State.INIT, b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    (State.INIT, b"GET / HTTP/1.1\r\n", "E_INVALID invalid command GET"),
    (State.INIT, b"\xff\xc3\xa9 x\n", "E_INVALID invalid command \udcffé"),
    # IDENTIFY and AUTH.
    (State.INIT, b"IDENTIFY\n\x00\x00\x00\xfb", "E_BAD_BODY IDENTIFY body too big 251 > 250"),
    (State.INIT, b"IDENTIFY\n\x00\x00\x00\x00", "E_BAD_BODY IDENTIFY invalid body size 0"),
    (State.INIT, b"IDENTIFY\n\xff\xff\xff\xff", "E_BAD_BODY IDENTIFY invalid body size -1"),
    (State.INIT, b"AUTH x\n", "E_INVALID AUTH invalid number of parameters"),
    (State.INIT, b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
    (State.INIT, b"AUTH\n\x00\x00\x00\xfb", "E_BAD_BODY AUTH body too big 251 > 250"),
    (State.INIT, b"AUTH\n\x00\x00\x00\x00", "E_BAD_BODY AUTH invalid body size 0"),
    (State.INIT, b"AUTH\n\x80\x00\x00\x00", "E_BAD_BODY AUTH invalid body size -2147483648"),
    # SUB.
    (State.INIT, b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    (State.INIT, b"SUB  c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    (State.INIT, b"SUB t*t c\n", 'E_BAD_TOPIC SUB topic name "t*t" is not valid'),
    (State.INIT, b'SUB t"\x01\xff c\n', r'E_BAD_TOPIC SUB topic name "t\"\x01\xff" is not valid'),
    (State.INIT, b"SUB t \n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
    (State.INIT, b"SUB t c#eph\n", 'E_BAD_CHANNEL SUB channel name "c#eph" is not valid'),
    (
        State.INIT,
        b"SUB " + b"t" * 65 + b" c\n",
        f'E_BAD_TOPIC SUB topic name "{"t" * 65}" is not valid',
    ),
    # PUB.
    (State.INIT, b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (State.INIT, b"PUB \n", 'E_BAD_TOPIC PUB topic name "" is not valid'),
    (State.INIT, b"PUB t\r\r\n", r'E_BAD_TOPIC PUB topic name "t\r" is not valid'),
    (State.INIT, b"PUB t\n\x00\x00\x00\x00", "E_BAD_MESSAGE PUB invalid message body size 0"),
    (State.INIT, b"PUB t\n\xff\xff\xff\xfe", "E_BAD_MESSAGE PUB invalid message body size -2"),
    (State.INIT, b"PUB t\n\x00\x00\x00\x65", "E_BAD_MESSAGE PUB message too big 101 > 100"),
    # DPUB.
    (State.INIT, b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    (State.INIT, b"DPUB t! 5\n", 'E_BAD_TOPIC DPUB topic name "t!" is not valid'),
    (State.INIT, b"DPUB t -1\n", "E_INVALID DPUB could not parse timeout -1"),
    (State.INIT, b"DPUB t +1\n", "E_INVALID DPUB could not parse timeout +1"),
    (State.INIT, b"DPUB t 1.5\n", "E_INVALID DPUB could not parse timeout 1.5"),
    (State.INIT, b"DPUB t 1_0\n", "E_INVALID DPUB could not parse timeout 1_0"),
    (State.INIT, b"DPUB t \xd9\xa3\n", "E_INVALID DPUB could not parse timeout \u0663"),
    (State.INIT, b"DPUB t 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (
        State.INIT,
        f"DPUB t {BIG}\n".encode(),
        f"E_INVALID DPUB timeout {BIG} out of range 0-3600000",
    ),
    (
        State.INIT,
        f"DPUB t {HUGE}\n".encode(),
        f"E_INVALID DPUB timeout {BIG} out of range 0-3600000",
    ),
    (State.INIT, b"DPUB t 5\n\x00\x00\x00\x00", "E_BAD_MESSAGE DPUB invalid message body size 0"),
    (State.INIT, b"DPUB t 5\n\x00\x00\x00\x65", "E_BAD_MESSAGE DPUB message too big 101 > 100"),
    # MPUB.
    (State.INIT, b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (State.INIT, b"MPUB t!\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t!" is not valid'),
    (State.INIT, b"MPUB t\n\x00\x00\x00\x00", "E_BAD_BODY MPUB invalid body size 0"),
    (State.INIT, b"MPUB t\n\xff\xff\xff\xff", "E_BAD_BODY MPUB invalid body size -1"),
    (State.INIT, b"MPUB t\n\x00\x00\x00\xfb", "E_BAD_BODY MPUB body too big 251 > 250"),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x00",
        "E_BAD_BODY MPUB invalid message count 0",
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x09\xff\xff\xff\xff",
        "E_BAD_BODY MPUB invalid message count -1",
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x09\x00\x00\x00\x32",
        "E_BAD_BODY MPUB invalid message count 50",
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x00",
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\xff\xff\xff\xfb",
        "E_BAD_MESSAGE MPUB invalid message(0) body size -5",
    ),
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x65",
        "E_BAD_MESSAGE MPUB message too big 101 > 100",
    ),
    (
        State.INIT,
        commands.mpub("t", [b"a", b"x" * 101, b"b"]),
        "E_BAD_MESSAGE MPUB message too big 101 > 100",
    ),
    # The inner sizes may differ from the body size, but not exceed the maximum body size.
    (
        State.INIT,
        b"MPUB t\n\x00\x00\x00\x14" + commands.mpub("t", [b"x" * 100] * 3)[len(b"MPUB t\n") + 4 :],
        "E_BAD_BODY MPUB body too big 316 > 250",
    ),
    # DMPUB, by analogy.
    (State.INIT, b"DMPUB t\n", "E_INVALID DMPUB insufficient number of parameters"),
    (State.INIT, b"DMPUB t! 1\n", 'E_BAD_TOPIC DMPUB topic name "t!" is not valid'),
    (State.INIT, b"DMPUB t x\n", "E_INVALID DMPUB could not parse timeout x"),
    (State.INIT, b"DMPUB t 3600001\n", "E_INVALID DMPUB timeout 3600001 out of range 0-3600000"),
    (State.INIT, b"DMPUB t 1\n\x00\x00\x00\x00", "E_BAD_BODY DMPUB invalid body size 0"),
    (State.INIT, b"DMPUB t 1\n\x00\x00\x00\xfb", "E_BAD_BODY DMPUB body too big 251 > 250"),
    (
        State.INIT,
        b"DMPUB t 1\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x00",
        "E_BAD_MESSAGE DMPUB invalid message(0) body size 0",
    ),
    # RDY.
    (State.SUBSCRIBED, b"RDY x\n", "E_INVALID RDY could not parse count x"),
    (State.SUBSCRIBED, b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    (State.SUBSCRIBED, b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
    (
        State.SUBSCRIBED,
        f"RDY {2**63 - 1}\n".encode(),
        f"E_INVALID RDY count {2**63 - 1} out of range 0-2500",
    ),
    (
        State.SUBSCRIBED,
        f"RDY {2**63}\n".encode(),
        f"E_INVALID RDY count -{2**63} out of range 0-2500",
    ),
    (State.SUBSCRIBED, f"RDY {BIG}\n".encode(), "E_INVALID RDY count -1 out of range 0-2500"),
    (State.SUBSCRIBED, f"RDY {2**64}\n".encode(), "E_INVALID RDY count -1 out of range 0-2500"),
    (State.SUBSCRIBED, f"RDY {HUGE}\n".encode(), "E_INVALID RDY count -1 out of range 0-2500"),
    # FIN, REQ, TOUCH.
    (State.SUBSCRIBED, b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (State.SUBSCRIBED, b"FIN \n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"FIN 0123456789abcde\n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"FIN 0123456789abcdef0\n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"FIN 0123456789abcde\r\n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"FIN 01234567 9abcdef\n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"REQ 0123456789abcdef\n", "E_INVALID REQ insufficient number of params"),
    (State.SUBSCRIBED, b"REQ short 0\n", "E_INVALID invalid message ID"),
    (State.SUBSCRIBED, b"REQ short x\n", "E_INVALID invalid message ID"),
    (
        State.SUBSCRIBED,
        b"REQ 0123456789abcdef -1\n",
        "E_INVALID REQ could not parse timeout -1",
    ),
    (State.SUBSCRIBED, b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    (State.SUBSCRIBED, b"TOUCH short\n", "E_INVALID invalid message ID"),
]


@pytest.mark.parametrize(("state", "data", "error"), REFUSED)
def test_a_bad_command_is_refused(state: State, data: bytes, error: str) -> None:
    check(data, Outcome([], state, error), lambda: connection(state))
    # The bytes after it do not change the error, and are not parsed.
    trailing = data + commands.pub("t", b"trailing")
    check(trailing, Outcome([], state, error), lambda: connection(state))


@pytest.mark.parametrize(("state", "data", "error"), REFUSED)
def test_commands_before_a_bad_command_are_executed(state: State, data: bytes, error: str) -> None:
    before: list[Event] = [Nop(), Publish("t", [b"a"], 1, "PUB"), Publish("t", [b"b"], 1, "PUB")]
    good = commands.nop() + commands.pub("t", b"a") + commands.pub("t", b"b")
    check(good + data, Outcome(before, state, error), lambda: connection(state))


# The checks that all commands share, from their table ---------------------------------------------

EXAMPLES = {
    "IDENTIFY": commands.identify({}),
    "AUTH": commands.auth(b"secret"),
    "SUB": commands.sub("topic", "channel"),
    "PUB": commands.pub("topic", b"body"),
    "MPUB": commands.mpub("topic", [b"body"]),
    "DPUB": commands.dpub("topic", 5, b"body"),
    "DMPUB": commands.dmpub("topic", 5, [b"body"]),
    "RDY": commands.rdy(1),
    "FIN": commands.fin(ID),
    "REQ": commands.req(ID, 1),
    "TOUCH": commands.touch(ID),
    "CLS": commands.cls(),
    "NOP": commands.nop(),
}


def test_every_command_has_an_example() -> None:
    assert {command.name for command in COMMANDS.values()} == set(EXAMPLES)


@pytest.mark.parametrize("state", ALL_STATES)
@pytest.mark.parametrize("word", EXAMPLES)
def test_a_command_is_accepted_only_in_its_states(word: str, state: State) -> None:
    command = COMMANDS[word.encode()]
    outcome = outcome_of([EXAMPLES[word]], connection(state))

    if state in command.ignored_in:
        assert Outcome([Nop()], state, "") == outcome
    elif state in command.states:
        assert 1 == len(outcome.commands)
        assert command.next_state in {None, outcome.state}
    else:
        assert Outcome([], state, f"E_INVALID cannot {word} in current state") == outcome


@pytest.mark.parametrize("word", ["IDENTIFY", "AUTH", "SUB"])
def test_a_command_in_a_wrong_state_is_refused_before_its_parameters_and_body(word: str) -> None:
    expected = Outcome([], State.SUBSCRIBED, f"E_INVALID cannot {word} in current state")
    check(f"{word}\n".encode(), expected, lambda: connection(State.SUBSCRIBED))


@pytest.mark.parametrize("word", [*EXAMPLES, "", "NOSUCH"])
def test_before_tls_every_command_but_identify_is_refused(word: str) -> None:
    server = connection()
    server.tls_required = True
    outcome = outcome_of([EXAMPLES.get(word, f"{word}\n".encode())], server)

    if word == "IDENTIFY":
        assert Outcome([Identify(b"{}")], State.INIT, "") == outcome
    else:
        text = f"E_INVALID cannot {word} in current state (TLS required)"
        assert Outcome([], State.INIT, text) == outcome


def test_missing_tls_is_reported_before_a_wrong_state() -> None:
    server = ServerConnection(LIMITS, tls_required=True)
    outcome = outcome_of([commands.MAGIC, commands.fin(ID)], server)

    assert "E_INVALID cannot FIN in current state (TLS required)" == outcome.end


def test_commands_are_accepted_after_tls() -> None:
    server = ServerConnection(LIMITS, tls_required=True)
    server.tls_required = False

    assert [Nop()] == outcome_of([commands.MAGIC + commands.nop()], server).commands


@pytest.mark.parametrize(
    "word", [command.name for command in COMMANDS.values() if command.params_min]
)
def test_too_few_parameters_are_refused(word: str) -> None:
    command = COMMANDS[word.encode()]
    state = min(command.states)
    for count in range(command.params_min):
        line = " ".join([word] + ["x"] * count) + "\n"
        error = f"E_INVALID {word} insufficient number of {command.params_noun}"

        assert Outcome([], state, error) == outcome_of([line.encode()], connection(state))


@pytest.mark.parametrize("line", [b"SUB topic channel\n", b"SUB\n"])
def test_sub_without_heartbeats_is_refused(line: bytes) -> None:
    server = connection()
    server.heartbeats_enabled = False

    assert "E_INVALID cannot SUB with heartbeats disabled" == outcome_of([line], server).end


def test_a_wrong_state_is_reported_before_missing_heartbeats() -> None:
    server = connection(State.SUBSCRIBED)
    server.heartbeats_enabled = False

    assert "E_INVALID cannot SUB in current state" == outcome_of([b"SUB t c\n"], server).end


# The end of the stream ----------------------------------------------------------------------------

BROKEN_OFF = [
    (b"", ""),
    (b"NO", ""),
    (b"PUB t", ""),
    (b"NOP\n", ""),
    (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\x00\x00\x00", "E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\x00\x00\x00\x05", "E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n\x00\x00\x00\x05hell", "E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 5\n\x00", "E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 5\n\x00\x00\x00\x05hell", "E_BAD_MESSAGE DPUB failed to read message body"),
    (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\x00\x00\x00\x02{", "E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\n\x00", "E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n\x00\x00\x00\x02{", "E_BAD_BODY AUTH failed to read body"),
    (b"MPUB t\n", "E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\x00\x00\x00", "E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\x00\x00\x00\x20", "E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n\x00\x00\x00\x20\x00", "E_BAD_BODY MPUB failed to read message count"),
    (
        b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02",
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    (
        b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02\x00\x00\x00\x01",
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
    (
        b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00",
        "E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    (
        b"MPUB t\n\x00\x00\x00\x20\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x02b",
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
    (b"DMPUB t 5\n", "E_BAD_BODY DMPUB failed to read body size"),
    (b"DMPUB t 5\n\x00\x00\x00\x20", "E_BAD_BODY DMPUB failed to read message count"),
    (
        b"DMPUB t 5\n\x00\x00\x00\x20\x00\x00\x00\x02",
        "E_BAD_MESSAGE DMPUB failed to read message(0) body size",
    ),
]


@pytest.mark.parametrize(("data", "error"), BROKEN_OFF)
def test_an_eof_inside_a_body_is_an_error(data: bytes, error: str) -> None:
    understood: list[Event] = [Nop()] if data == b"NOP\n" else []
    check(data, Outcome(understood, State.INIT, error), connection)


def test_an_eof_inside_a_line_after_a_body_is_no_error() -> None:
    server = connection()
    server.receive_data(b"PUB t\n\x00\x00")
    assert server.next_event() is None
    server.receive_data(b"\x00\x01aNO")

    assert Publish("t", [b"a"], 1, "PUB") == server.next_event()
    assert server.next_event() is None
    server.receive_eof()


# The magic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_the_magic_may_come_in_pieces(size: int) -> None:
    data = b"  V2NOP\n"

    expected = Outcome([Nop()], State.INIT, "")
    assert expected == outcome_of(pieces(data, size), ServerConnection(LIMITS))


@pytest.mark.parametrize("data", [b"  V1", b"  v2", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100])
def test_another_magic_is_refused(data: bytes) -> None:
    check(data, Outcome([], State.INIT, "E_BAD_PROTOCOL"), lambda: ServerConnection(LIMITS))


def test_an_eof_inside_the_magic_is_no_error() -> None:
    check(b"  V", Outcome([], State.INIT, ""), lambda: ServerConnection(LIMITS))


# Lines --------------------------------------------------------------------------------------------


def test_a_line_of_the_maximum_length_is_accepted() -> None:
    line = b"NOP " + b"x" * (LINE_BYTES_MAX - len(b"NOP \n")) + b"\n"

    assert LINE_BYTES_MAX == len(line)
    for size in (LINE_BYTES_MAX, LINE_BYTES_MAX - 1, 1000):
        expected = Outcome([Nop(), Nop()], State.INIT, "")
        assert expected == outcome_of(pieces(line * 2, size), connection())


def test_a_longer_line_closes_the_connection_without_a_response() -> None:
    line = b"NOP " + b"x" * (LINE_BYTES_MAX - len(b"NOP ")) + b"\n"

    for data in (line, line[:-1], b"NOP\n" + line):
        for size in (LINE_BYTES_MAX, len(data), 1000):
            outcome = outcome_of(pieces(data, size), connection())
            assert "line too long" == outcome.end


# Batches ------------------------------------------------------------------------------------------


def events_of(data: bytes, server: ServerConnection) -> list[Event]:
    server.receive_data(data)
    return list(drain(server))


# Each item is the data of one read; a command may continue in the next read.
READS = [
    [commands.pub("t", b"a"), commands.pub("t", b"bc"), commands.pub("t", b"d") * 2],
    [commands.pub("t", b"a"), commands.pub("u", b"a"), commands.pub("tt", b"a")],
    [commands.pub("t", b"a"), b"PUB t\n", int32(1), b"b", commands.pub("t", b"c")],
    [commands.pub("t", b"a"), b"PUB t\n" + int32(2) + b"b", commands.pub("t", b"c")],
    [commands.pub("t", b"a"), b"PUB t\n" + int32(1) + b"bNO", b"P\n", commands.pub("t", b"c")],
    [commands.pub("t", b"a"), b"PUB t\n" + int32(0), commands.pub("t", b"c")],
    [commands.pub("t", b"a"), b"PUB t\n" + int32(-1), commands.pub("t", b"c")],
    [commands.pub("t", b"a"), commands.pub("t", b"x" * (LIMITS.max_msg_size + 1))],
    [commands.pub("t", b"a"), commands.pub("t", b"x" * LIMITS.max_msg_size)],
    [commands.dpub("t", 5, b"a"), commands.dpub("t", 5, b"b"), commands.dpub("t", 6, b"c")],
    [commands.fin(ID), commands.fin(ID) + commands.fin(OTHER_ID), commands.fin(ODD_ID)],
    [commands.fin(ID), commands.fin(ID)[:-1], b"\n", commands.fin(ID) + commands.nop()],
    [commands.pub("t", b"a"), commands.fin(ID), commands.pub("t", b"b"), commands.fin(ID)],
    # A body that looks like commands.
    [
        commands.pub("t", b"a"),
        *pieces(commands.mpub("t", [commands.pub("t", b"b"), commands.fin(ID)]), 11),
        b"MPUB t\n" + int32(29) + int32(1) + int32(21),
        commands.fin(ID),
        commands.fin(OTHER_ID),
    ],
]


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("state", [State.INIT, State.SUBSCRIBED, State.CLOSING])
def test_the_fast_parser_gives_the_same_result(reads: list[bytes], state: State) -> None:
    expected = outcome_of([b"".join(reads)], connection(state))
    for short_way in (False, True):
        assert expected == outcome_of(reads, connection(state), short_way=short_way)


def test_connections_share_the_cache_of_lines() -> None:
    lines = CommandCache()
    first, second, unmet = (ServerConnection(LIMITS, lines) for _ in range(3))
    guarded = ServerConnection(LIMITS, lines, tls_required=True)
    for server in (first, second, guarded):
        assert [] == events_of(commands.MAGIC, server)
    assert 1 == len(events_of(commands.pub("t", b"a"), first))

    assert Publish("t", [b"b"], 1, "PUB") == second.parse_single(commands.pub("t", b"b"))
    assert [Publish("t", [b"c"], 1, "PUB")] == events_of(commands.pub("t", b"c"), second)
    assert None is unmet.parse_single(commands.pub("t", b"d"))  # it has not sent the magic
    assert None is guarded.parse_single(commands.pub("t", b"e"))
    with pytest.raises(ProtocolError, match="TLS required"):
        events_of(commands.pub("t", b"e"), guarded)


def test_the_number_of_cached_lines_is_limited() -> None:
    lines = CommandCache()
    server = ServerConnection(LIMITS, lines)
    events_of(commands.MAGIC, server)
    for number in range(LINES_MAX + 1):
        assert 1 == len(events_of(commands.pub(f"t{number}", b"a"), server))

    assert LINES_MAX == len(lines)
    assert b"PUB t0\n" not in lines


def test_a_line_with_long_ignored_parts_is_not_cached() -> None:
    lines = CommandCache()
    server = ServerConnection(LIMITS, lines)
    events_of(commands.MAGIC, server)
    line = b"PUB t " + b"x" * CACHED_LINE_BYTES_MAX + b"\n"
    for _ in range(2):
        assert [Publish("t", [b"a"], 1, "PUB")] == events_of(line + b"\0\0\0\1a", server)

    assert {} == lines


def test_the_fast_parser_is_used() -> None:
    server = connection(State.SUBSCRIBED)
    assert [Publish("t", [b"a"], 1, "PUB")] == events_of(commands.pub("t", b"a"), server)
    assert Publish("t", [b"b"], 1, "PUB") == server.parse_single(commands.pub("t", b"b"))
    assert Fin([ID, OTHER_ID]) == server.parse_single(commands.fins([ID, OTHER_ID]))


def test_a_run_of_fins_is_one_event() -> None:
    ids = [b"%016x" % number for number in range(5000)]
    data = b"".join(map(commands.fin, ids)) + commands.rdy(7) + commands.fin(ID) * 2

    expected = [Fin(ids), Rdy(7), Fin([ID, ID])]
    assert expected == events_of(data, connection(State.SUBSCRIBED))


def test_a_run_of_publishes_to_one_topic_is_one_event_with_an_ok_for_each() -> None:
    data = commands.pub("t", b"a") * 3 + commands.pub("u", b"b") + commands.pub("t", b"c")

    expected = [
        Publish("t", [b"a"] * 3, 3, "PUB"),
        Publish("u", [b"b"], 1, "PUB"),
        Publish("t", [b"c"], 1, "PUB"),
    ]
    assert expected == events_of(data, connection())


def test_deferred_publishes_are_one_event_if_their_delay_is_the_same() -> None:
    data = commands.dpub("t", 1, b"a") * 2 + commands.dpub("t", 2, b"a")

    expected = [Publish("t", [b"a"] * 2, 2, "DPUB", 1), Publish("t", [b"a"], 1, "DPUB", 2)]
    assert expected == events_of(data, connection())


def test_a_run_stops_before_an_incomplete_publish() -> None:
    server = connection()
    whole = commands.pub("t", b"a")

    assert [Publish("t", [b"a"] * 2, 2, "PUB")] == events_of(whole * 2 + whole[:-1], server)
    assert [Publish("t", [b"a"] * 2, 2, "PUB")] == events_of(b"a" + whole, server)


def test_a_complete_multi_publish_is_one_event() -> None:
    data = commands.mpub("t", [b"a", b"b"])

    assert [Publish("t", [b"a", b"b"], 1, "MPUB")] == events_of(data, connection())


@pytest.mark.parametrize("word", ["MPUB", "DMPUB"])
def test_a_multi_publish_reports_its_topic_before_its_body_is_complete(word: str) -> None:
    server = connection()
    line, body = EXAMPLES[word].split(b"\n", 1)

    assert [] == events_of(line, server)
    assert [TopicNamed("topic", word)] == events_of(b"\n", server)
    assert [] == events_of(body[:-1], server)
    defer_ms = 0 if word == "MPUB" else 5
    assert [Publish("topic", [b"body"], 1, word, defer_ms)] == events_of(body[-1:], server)


def test_a_bad_multi_publish_reports_its_topic_before_the_error() -> None:
    server = connection()
    server.receive_data(b"MPUB t\n\x00\x00\x00\x00")

    assert TopicNamed("t", "MPUB") == server.next_event()
    with pytest.raises(ProtocolError, match="E_BAD_BODY MPUB invalid body size 0"):
        server.next_event()
    assert server.next_event() is None


def test_a_multi_publish_with_a_bad_topic_reports_no_topic() -> None:
    server = connection()
    server.receive_data(b"MPUB t!\n\x00\x00\x00\x00")
    with pytest.raises(ProtocolError):
        server.next_event()


# After an error, and before TLS ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"), [(b"BAD\n", ProtocolError), (b"x" * LINE_BYTES_MAX, LineTooLongError)]
)
def test_after_an_error_the_connection_accepts_nothing(data: bytes, error: type[Exception]) -> None:
    server = connection()
    server.receive_data(data)
    with pytest.raises(error):
        server.next_event()
    server.receive_data(commands.nop())

    assert server.next_event() is None
    assert b"" == server.take_unread()
    server.receive_eof()


def test_after_its_end_the_connection_accepts_nothing() -> None:
    server = connection()
    server.receive_eof()

    assert [] == events_of(commands.nop(), server)


def test_unparsed_bytes_can_be_taken_out() -> None:
    """The bytes after IDENTIFY may be the start of a TLS handshake."""
    server = connection()
    server.receive_data(commands.identify({}) + b"\x16\x03\x01 hello")

    assert Identify(b"{}") == server.next_event()
    assert b"\x16\x03\x01 hello" == server.take_unread()
    assert [Nop()] == events_of(commands.nop(), server)


# Any bytes at all ---------------------------------------------------------------------------------

names = st.sampled_from(["t", "u", "topic#ephemeral"])
bodies = st.binary(min_size=1, max_size=30)
delays = st.integers(0, 3600000)
ids = st.sampled_from([ID, OTHER_ID, ODD_ID])
good_commands = st.one_of(
    st.builds(commands.pub, names, bodies),
    st.builds(commands.dpub, names, delays, bodies),
    st.builds(commands.mpub, names, st.lists(bodies, min_size=1, max_size=7)),
    st.builds(commands.dmpub, names, delays, st.lists(bodies, min_size=1, max_size=7)),
    st.builds(commands.fin, ids),
    st.builds(commands.req, ids, delays),
    st.builds(commands.touch, ids),
    st.builds(commands.rdy, st.integers(0, 2500)),
    st.just(commands.nop()),
)
almost_commands = st.builds(
    lambda command, at, junk: command[: at % len(command)] + junk + command[at % len(command) :],
    st.sampled_from(list(EXAMPLES.values())),
    st.integers(0, 100),
    st.binary(max_size=3),
)
streams = st.one_of(
    st.lists(good_commands, max_size=30).map(b"".join),
    st.lists(st.one_of(good_commands, almost_commands), max_size=10).map(b"".join),
    st.lists(st.one_of(good_commands, almost_commands, st.binary()), max_size=6).map(b"".join),
    st.binary(),
)


@given(
    stream=streams,
    cuts=st.lists(st.integers(0, 300)),
    state=st.sampled_from(ALL_STATES),
)
@example(stream=b"MPUB t\n" + int32(9) + int32(2) + int32(-1) + b"x", cuts=[], state=State.INIT)
def test_any_bytes_give_the_same_result_however_they_are_split(
    stream: bytes, cuts: list[int], state: State
) -> None:
    """The only results are events, ProtocolError and LineTooLongError."""
    edges = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    chunks = [stream[start:stop] for start, stop in pairwise(edges)]

    whole = outcome_of([stream], connection(state))
    assert whole == outcome_of(chunks, connection(state))
    assert whole == outcome_of(pieces(stream, 1), connection(state))


@given(st.lists(good_commands, min_size=1, max_size=20))
def test_any_sequence_of_valid_commands_is_parsed(stream: list[bytes]) -> None:
    outcome = outcome_of([b"".join(stream)], connection(State.SUBSCRIBED))

    assert ("", len(stream)) == (outcome.end, len(outcome.commands))
