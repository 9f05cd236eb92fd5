"""Heartbeats and timeouts of one connection, with one timer for all of them.

A connection is closed if the client sends no command for two heartbeat intervals, or reads nothing
for one interval while data waits for it. This is NSQ's rule; it does not cover clients
that have turned heartbeats off, or have not sent the protocol magic. So there are two further
timeouts: for the magic, and for the rest of a command that has begun to arrive.

If the process or its machine was suspended, all timeouts start again: data that clients have sent
meanwhile is not read yet.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Heartbeat", "HeartbeatTarget", "Timeouts"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits for the protocol magic, and for the rest of a command."""

    greeting_seconds: float
    command_seconds: float


class HeartbeatTarget(Protocol):
    """Methods of the connection that `Heartbeat` calls."""

    @property
    def is_greeted(self) -> bool:
        """Whether the client has sent the protocol magic."""

    @property
    def is_inside_command(self) -> bool:
        """Whether a command has arrived in part."""

    def send_heartbeat(self) -> None:
        """Sends a heartbeat."""

    def time_out(self, reason: str) -> None:
        """Closes the connection at once."""


class Heartbeat:
    """Sends heartbeats, and closes the connection after a timeout."""

    __slots__ = (
        "_begun_at",
        "_connection",
        "_due_at",
        "_interval",
        "_interval_seconds",
        "_loop",
        "_next_check_at",
        "_next_heartbeat_at",
        "_resumed_at",
        "_seen_inside_at",
        "_timeouts",
        "_timer",
        "blocked_since",
        "is_answering",
        "last_command_at",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: HeartbeatTarget,
        timeouts: Timeouts,
        interval: Callable[[], float | None],
    ) -> None:
        """`interval` returns the heartbeat interval in seconds, or None without heartbeats."""
        self._loop = loop
        self._connection = connection
        self._timeouts = timeouts
        self._interval = interval
        self._begun_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = _NEVER  # The time the timer is set to.
        self._resumed_at = self._begun_at  # End of the last suspension.
        self._interval_seconds = _NEVER
        self._next_heartbeat_at = _NEVER
        self._next_check_at = self._begun_at + timeouts.greeting_seconds
        # `last_command_at` at the last check that found a command in part.
        self._seen_inside_at = _NEVER
        self.last_command_at = self._begun_at
        self.blocked_since: float | None = None
        self.is_answering = False
        """Whether a coroutine is answering the last command: the client has to wait for it."""

    def start(self) -> None:
        """Starts heartbeats at the present interval; later changes affect only the timeouts."""
        self._interval_seconds = self._interval() or _NEVER
        self._next_heartbeat_at = self._loop.time() + self._interval_seconds
        self.schedule()

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self) -> None:
        """Sets the timer to the next heartbeat, check or deadline."""
        self.stop()
        self._due_at = min(self._next_heartbeat_at, self._next_check_at, self._deadline())
        if self._due_at != _NEVER:
            self._timer = self._loop.call_at(self._due_at, self._tick)

    def _deadline(self) -> float:
        interval, held_until = self._interval() or _NEVER, self._resumed_at
        if self.is_answering:
            deadline = _NEVER
        else:
            deadline = max(self.last_command_at, held_until) + 2 * interval
        if self.blocked_since is not None:
            deadline = min(deadline, max(self.blocked_since, held_until) + interval)
        return deadline

    def _tick(self) -> None:
        now = self._loop.time()
        self._detect_suspension(now)
        if now >= self._deadline():
            self._connection.time_out("i/o timeout")
            return
        if now >= self._next_check_at and (reason := self._check_commands(now)):
            self._connection.time_out(reason)
            return
        if now >= self._next_heartbeat_at:
            self._next_heartbeat_at = now + self._interval_seconds
            if self._connection.is_greeted:
                self._connection.send_heartbeat()
        self.schedule()

    def _detect_suspension(self, now: float) -> None:
        """Restarts the timeouts if the timer is late by half of a timeout or more: then the process
        was suspended."""
        timeouts = self._timeouts
        check_seconds = (
            timeouts.command_seconds if self._connection.is_greeted else timeouts.greeting_seconds
        )
        if now - self._due_at > min(check_seconds, self._interval() or _NEVER) / 2:
            self._resumed_at = now
            self._next_check_at = now + check_seconds

    def _check_commands(self, now: float) -> str | None:
        """Returns the reason to close the connection, if there is one. If two consecutive checks
        find the same command incomplete, its time limit is exceeded."""
        if not self._connection.is_greeted:
            return "no protocol magic in time"
        self._next_check_at = now + self._timeouts.command_seconds
        if not self._connection.is_inside_command:
            self._seen_inside_at = _NEVER
        elif self._seen_inside_at == self.last_command_at:
            return "a command took too long to arrive"
        else:
            self._seen_inside_at = self.last_command_at
        return None
