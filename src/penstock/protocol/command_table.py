"""Every command a client may send: when it is allowed, where it leads, and how it is read.

This is the one place that knows the commands. The connection dispatches by it, and makes from it
the checks that all commands share; the documentation and the tests are held to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.protocol.command_cache import PublishLine
from penstock.protocol.decoders import (
    MultiPublish,
    NeedMore,
    Request,
    decode_auth,
    decode_cls,
    decode_dmpub,
    decode_dpub,
    decode_fin,
    decode_identify,
    decode_mpub,
    decode_nop,
    decode_pub,
    decode_rdy,
    decode_req,
    decode_sub,
    decode_touch,
)
from penstock.protocol.events import Event
from penstock.protocol.state import State

__all__ = ["COMMANDS", "Command"]

Decoder: TypeAlias = Callable[[Request], Event | PublishLine | MultiPublish | NeedMore]


@dataclass(frozen=True, slots=True)
class Command:
    """What is known of a command before its bytes are looked at."""

    word: str
    syntax: str
    answer: str
    decode: Decoder
    states: tuple[State, ...]
    moves_to: State | None = None
    ignored_in: tuple[State, ...] = ()
    params_min: int = 0
    params_noun: str = "parameters"
    before_tls: bool = False
    needs_heartbeats: bool = False


# Tuples, because they find a member by identity, and an enum is slow to hash.
_ANY = tuple(State)
_INIT = (State.INIT,)
_SUBSCRIBED = (State.SUBSCRIBED,)
_CLOSING = (State.CLOSING,)

COMMANDS = {
    command.word.encode(): command
    for command in (
        Command(
            "IDENTIFY",
            r"IDENTIFY\n[size][JSON]",
            answer="JSON, or OK",
            decode=decode_identify,
            states=_INIT,
            before_tls=True,
        ),
        Command(
            "AUTH",
            r"AUTH\n[size][secret]",
            answer="JSON",
            decode=decode_auth,
            states=_INIT,
        ),
        Command(
            "SUB",
            r"SUB <topic> <channel>\n",
            answer="OK",
            decode=decode_sub,
            states=_INIT,
            moves_to=State.SUBSCRIBED,
            params_min=2,
            needs_heartbeats=True,
        ),
        Command(
            "PUB",
            r"PUB <topic>\n[size][message]",
            answer="OK",
            decode=decode_pub,
            states=_ANY,
            params_min=1,
        ),
        Command(
            "MPUB",
            r"MPUB <topic>\n[body size][count]([size][message])*",
            answer="OK",
            decode=decode_mpub,
            states=_ANY,
            params_min=1,
        ),
        Command(
            "DPUB",
            r"DPUB <topic> <defer ms>\n[size][message]",
            answer="OK",
            decode=decode_dpub,
            states=_ANY,
            params_min=2,
        ),
        Command(
            "DMPUB",
            r"DMPUB <topic> <defer ms>\n[body size][count]([size][message])*",
            answer="OK",
            decode=decode_dmpub,
            states=_ANY,
            params_min=2,
        ),
        Command(
            "RDY",
            r"RDY [count]\n",
            answer="",
            decode=decode_rdy,
            states=_SUBSCRIBED,
            ignored_in=_CLOSING,
        ),
        Command(
            "FIN",
            r"FIN <message id>\n",
            answer="",
            decode=decode_fin,
            states=_SUBSCRIBED + _CLOSING,
            params_min=1,
            params_noun="params",
        ),
        Command(
            "REQ",
            r"REQ <message id> <delay ms>\n",
            answer="",
            decode=decode_req,
            states=_SUBSCRIBED + _CLOSING,
            params_min=2,
            params_noun="params",
        ),
        Command(
            "TOUCH",
            r"TOUCH <message id>\n",
            answer="",
            decode=decode_touch,
            states=_SUBSCRIBED + _CLOSING,
            params_min=1,
            params_noun="params",
        ),
        Command(
            "CLS",
            r"CLS\n",
            answer="CLOSE_WAIT",
            decode=decode_cls,
            states=_SUBSCRIBED,
            moves_to=State.CLOSING,
        ),
        Command(
            "NOP",
            r"NOP\n",
            answer="",
            decode=decode_nop,
            states=_ANY,
        ),
    )
}
