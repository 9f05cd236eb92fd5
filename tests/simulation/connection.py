"""A client and its connection, in bytes: the real `Client` of nsqd behind a transport in memory.

The client sends commands as bytes, whole or in two pieces, and reads frames. It records which
responses and errors it must get, in order; any other frame is a violation. It answers heartbeats
unless `ignores_heartbeats` is set.
"""

import asyncio
import socket
from collections import deque
from typing import Any, Protocol

from tests.simulation.loop import SimulatedLoop
from tests.simulation.violation import ViolationError

from penstock.nsqd.tcp import Client, ClientServices
from penstock.protocol import commands
from penstock.protocol.frames import ErrorFrame, FrameReader, MessageFrame, ResponseFrame

__all__ = ["Connection", "ExpectedReply", "Observer"]

_HEARTBEAT = ResponseFrame(b"_heartbeat_")


class ExpectedReply:
    """An expected reply, and the bodies that it acknowledges."""

    __slots__ = ("bodies", "word")

    def __init__(self, word: str, bodies: tuple[bytes, ...] = ()) -> None:
        """`word` is OK, CLOSE_WAIT, JSON, or the code of an error that closes nothing."""
        self.word = word
        self.bodies = bodies


class Observer(Protocol):
    """Receives the events of a client."""

    def acknowledged(self, bodies: tuple[bytes, ...]) -> None:
        """nsqd answered OK for these bodies."""

    def delivered(self, connection: "Connection", messages: list[MessageFrame]) -> None:
        """nsqd sent these messages with one write."""

    def refused(self, connection: "Connection", error: ErrorFrame) -> None:
        """nsqd sent an error before it closes the connection."""

    def left(self, connection: "Connection") -> None:
        """The connection is closed."""


class _Socket:
    """The socket attributes that nsqd reads, for a unix socket."""

    family = socket.AF_UNIX


class _Transport(asyncio.Transport):
    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection
        self.reading = True
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.read(bytes(data))

    def write_eof(self) -> None:
        self._connection.server_ended()

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._connection.server_ended()

    abort = close


class Connection:
    """A simulated client and its connection."""

    def __init__(
        self, name: str, services: ClientServices, loop: SimulatedLoop, observer: Observer
    ) -> None:
        self.name = name
        self.ignores_heartbeats = False
        self.blocked = False
        self.closing = False  # has sent CLS
        self.gone = False
        self.expected_replies: deque[ExpectedReply] = deque()
        self.assigned: deque[MessageFrame] = deque()  # assigned by nsqd, and sent later in the turn
        self._loop = loop
        self._observer = observer
        self._frames = FrameReader()
        self._transport = _Transport(self)
        self._is_cut_off = False
        self.server = Client(services)
        self.server.connection_made(self._transport)
        self.server.data_received(commands.MAGIC)

    @property
    def can_send(self) -> bool:
        """Whether the server reads."""
        return not self.gone and self._transport.reading

    def send(
        self, data: bytes, *expected_replies: ExpectedReply, cut: int = 0, in_one_turn: bool = True
    ) -> None:
        """Send commands; if `cut`, in two pieces, between which the loop may run."""
        self.expected_replies.extend(expected_replies)
        at = cut % len(data) if cut else 0
        if at:
            self.server.data_received(data[:at])
            if not in_one_turn:
                self._loop.run_ready()
        if not self.gone:
            self.server.data_received(data[at:])

    def stop_reading(self) -> None:
        """Stop reading; the server's output stays in its buffer."""
        if not self.blocked and not self.gone:
            self.blocked = True
            self.server.pause_writing()

    def resume_reading(self) -> None:
        """Read the buffered output and all further output."""
        if self.blocked and not self.gone:
            self.blocked = False
            self.server.resume_writing()

    def end(self) -> None:
        """Send EOF."""
        if not self.gone and not self.server.eof_received():
            self._transport.close()

    def reset(self) -> None:
        """Reset the connection."""
        if not self.gone:
            self._transport.closing = True
            self._cut_off(ConnectionResetError())

    # Called by the transport.

    def read(self, data: bytes) -> None:
        frames = self._frames
        frames.receive_data(data)
        while True:
            messages = frames.next_messages(MessageFrame)
            if messages:
                self._observer.delivered(self, messages)
            frame = frames.next_frame()
            if frame is None:
                return
            if frame == _HEARTBEAT:
                self._loop.call_soon(self._answer_heartbeat)
            elif isinstance(frame, MessageFrame):
                self._observer.delivered(self, [frame])
            else:
                self._see_reply(frame)

    def server_ended(self) -> None:
        """The server has closed its side; the client closes, too."""
        if not self.gone:
            self._loop.call_soon(self._cut_off, None)
            self._leave()

    def _see_reply(self, frame: ResponseFrame | ErrorFrame) -> None:
        word = frame.code if isinstance(frame, ErrorFrame) else frame.data.decode()
        if self.expected_replies and word.startswith("{"):
            word = "JSON"
        if self.expected_replies and self.expected_replies[0].word == word:
            self._observer.acknowledged(self.expected_replies.popleft().bodies)
        elif isinstance(frame, ErrorFrame):
            self._observer.refused(self, frame)
        else:
            expected = self.expected_replies[0].word if self.expected_replies else "nothing"
            raise ViolationError(f"{self.name} was answered {word}, expected {expected}")

    def _answer_heartbeat(self) -> None:
        if not self.ignores_heartbeats and self.can_send:
            self.server.data_received(commands.nop())

    def _cut_off(self, reason: Exception | None) -> None:
        if not self._is_cut_off:
            self._is_cut_off = True
            self._transport.closing = True
            self.server.connection_lost(reason)
            self._leave()

    def _leave(self) -> None:
        if not self.gone:
            self.gone = True
            self._observer.left(self)
