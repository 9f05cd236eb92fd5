"""A connection's heartbeats and deadlines, on the loop's clock: one timer for all of them.

A client that sends no command for two heartbeat intervals is given up, and so is one that for an
interval takes nothing of what is waiting for it. That is the reference's rule; a client that has
turned heartbeats off escapes it, and one that never says a word was never under it. So there are
two more: the time to say which protocol it speaks, and the time to end a command it has begun.

Time in which we did not run, because the process or its machine was held, counts against nobody:
what a client has sent meanwhile is not read yet, and it could not answer what we did not send.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Heartbeat", "HeartbeatTarget", "Timeouts"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long nsqd waits for what a client has no reason to delay."""

    greeting_seconds: float
    command_seconds: float


class HeartbeatTarget(Protocol):
    """The connection, as far as its pulse is concerned."""

    @property
    def is_greeted(self) -> bool:
        """Whether the client has said which protocol it speaks."""

    @property
    def is_inside_command(self) -> bool:
        """Whether a command has begun to arrive, and is not all here."""

    def send_heartbeat(self) -> None:
        """Sends a heartbeat."""

    def time_out(self, reason: str) -> None:
        """Closes at once."""


class Heartbeat:
    """See the module's docstring."""

    __slots__ = (
        "_beat_seconds",
        "_begun_at",
        "_connection",
        "_due_at",
        "_interval",
        "_loop",
        "_next_beat_at",
        "_next_check_at",
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
        """`interval` tells the heartbeat interval in seconds; None when there are no heartbeats."""
        self._loop = loop
        self._connection = connection
        self._timeouts = timeouts
        self._interval = interval
        self._begun_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = _NEVER  # what the timer is set to
        self._resumed_at = self._begun_at  # when we last began to run again
        self._beat_seconds = _NEVER
        self._next_beat_at = _NEVER
        self._next_check_at = self._begun_at + timeouts.greeting_seconds
        self._seen_inside_at = _NEVER  # the last command's time, when a look found another begun
        self.last_command_at = self._begun_at
        self.blocked_since: float | None = None
        self.is_answering = False  # its last command is not answered, and it can do nothing

    def start(self) -> None:
        """Beats from now on, at the interval of now; later changes move only the deadlines."""
        self._beat_seconds = self._interval() or _NEVER
        self._next_beat_at = self._loop.time() + self._beat_seconds
        self.schedule()

    def stop(self) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def schedule(self) -> None:
        """Sets the one timer to whatever comes first."""
        self.stop()
        self._due_at = min(self._next_beat_at, self._next_check_at, self._deadline())
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
        if now >= self._next_beat_at:
            self._next_beat_at = now + self._beat_seconds
            if self._connection.is_greeted:
                self._connection.send_heartbeat()
        self.schedule()

    def _detect_suspension(self, now: float) -> None:
        """A timer that is late by half of what somebody may take was held up by no ordinary load;
        from now on, everybody has his full time again."""
        timeouts = self._timeouts
        look_seconds = (
            timeouts.command_seconds if self._connection.is_greeted else timeouts.greeting_seconds
        )
        if now - self._due_at > min(look_seconds, self._interval() or _NEVER) / 2:
            self._resumed_at = now
            self._next_check_at = now + look_seconds

    def _check_commands(self, now: float) -> str | None:
        """Why the connection is to be given up, if it is. A command that two looks in a row find
        begun has had at least the time that it may take."""
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
