"""The bytes of each command."""

import pytest

from penstock.protocol import commands
from penstock.protocol.command_table import COMMANDS

ID = b"0123456789abcdef"

GOLDEN = {
    "IDENTIFY": (
        commands.identify({"client_id": "é", "tls_v1": False}),
        b'IDENTIFY\n\x00\x00\x00\x25{"client_id":"\\u00e9","tls_v1":false}',
    ),
    "AUTH": (commands.auth(b"secret"), b"AUTH\n\x00\x00\x00\x06secret"),
    "SUB": (commands.sub("topic", "channel#ephemeral"), b"SUB topic channel#ephemeral\n"),
    "PUB": (commands.pub("topic", b"hello"), b"PUB topic\n\x00\x00\x00\x05hello"),
    "MPUB": (
        commands.mpub("topic", [b"one", b"three"]),
        b"MPUB topic\n\x00\x00\x00\x14\x00\x00\x00\x02\x00\x00\x00\x03one\x00\x00\x00\x05three",
    ),
    "DPUB": (commands.dpub("topic", 1500, b"hello"), b"DPUB topic 1500\n\x00\x00\x00\x05hello"),
    "DMPUB": (
        commands.dmpub("topic", 1500, [b"one"]),
        b"DMPUB topic 1500\n\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03one",
    ),
    "RDY": (commands.rdy(2500), b"RDY 2500\n"),
    "FIN": (commands.fin(ID), b"FIN 0123456789abcdef\n"),
    "REQ": (commands.req(ID, 90000), b"REQ 0123456789abcdef 90000\n"),
    "TOUCH": (commands.touch(ID), b"TOUCH 0123456789abcdef\n"),
    "CLS": (commands.cls(), b"CLS\n"),
    "NOP": (commands.nop(), b"NOP\n"),
}


@pytest.mark.parametrize("word", GOLDEN)
def test_a_command_is_these_bytes(word: str) -> None:
    rendered, expected = GOLDEN[word]

    assert expected == rendered


def test_every_command_of_the_server_has_a_function() -> None:
    assert {command.name for command in COMMANDS.values()} == set(GOLDEN)


def test_the_magic_is_two_spaces_and_the_version() -> None:
    assert b"  V2" == commands.MAGIC
