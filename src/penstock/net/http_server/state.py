"""What the connections of one server share: its limits, its plans, its clock, and each other."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.common.logs import Logger
from penstock.net.connection_limits import Admission
from penstock.net.http_server.requests import Request
from penstock.net.http_server.responses import Response
from penstock.net.http_server.route_cache import Planner

__all__ = ["Gate", "Limits", "ServerState"]

# Sees every request before its body is read, and may answer it in place of its route.
Gate = Callable[[Request], Response | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one connection may cost."""

    head_bytes_max: int = 1 << 20  # Go's
    pipelined_max: int = 128  # requests of one connection that wait for a promise
    head_seconds: float = 30  # from its first byte, or the connection's start, to its last
    body_seconds: float = 60
    idle_seconds: float = 120  # between requests
    write_seconds: float = 60  # without any progress of the peer in taking our answers
    linger_seconds: float = 1  # for the peer to read our last answer

    @property
    def shortest_seconds(self) -> float:
        """How often deadlines have to be looked at for all of these to mean something."""
        return min(
            self.head_seconds,
            self.body_seconds,
            self.idle_seconds,
            self.write_seconds,
            self.linger_seconds,
        )


class OpenConnection(Protocol):
    """A connection, as its server sees it."""

    deadline: float

    def expire(self) -> None:
        """Ends the connection because its deadline has passed."""

    def finish(self) -> None:
        """Ends the connection as soon as what it has asked for is answered."""

    def abort(self) -> None:
        """Ends the connection now."""


@dataclass(slots=True)
class ServerState:
    """Belongs to one server and one loop."""

    planner: Planner
    limits: Limits
    log: Logger
    gates: tuple[Gate, ...]
    admission: Admission

    connections: set[OpenConnection] = field(default_factory=set)
    all_gone: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    # Of endpoints: the loop alone would not keep them from being collected.
    tasks: "set[asyncio.Future[object]]" = field(default_factory=set)
    refusals: Counter[int] = field(default_factory=Counter)  # by status
    answers: dict[int, int] = field(default_factory=partial(defaultdict, int))
    """To requests, by status."""

    # Set about once a second, and exact enough for what they are used for.
    now: float = 0.0
    idle_deadline: float = 0.0
    date: bytes = b""  # the whole line
