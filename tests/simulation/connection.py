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

__all__ = ["Connection", "Observer", "Owed"]

_HEARTBEAT = ResponseFrame(b"_heartbeat_")


class Owed:
    """A reply that the client waits for, and the bodies that it acknowledges, if it does."""

    __slots__ = ("bodies", "word")

    def __init__(self, word: str, bodies: tuple[bytes, ...] = ()) -> None:
        """`word` is OK, CLOSE_WAIT, JSON or the code of an error that closes nothing."""
        self.word = word
        self.bodies = bodies


class Observer(Protocol):
    """Who is told what a client sees."""

    def acknowledged(self, bodies: tuple[bytes, ...]) -> None:
        """These were answered with OK."""

    def delivered(self, connection: "Connection", messages: list[MessageFrame]) -> None:
        """These were written to the client with one write."""

    def refused(self, connection: "Connection", error: ErrorFrame) -> None:
        """The server has said why it will close."""

    def left(self, connection: "Connection") -> None:
        """The connection is over, for whatever reason."""


class _Socket:
    """Has what is looked for on a connection over a unix socket."""

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
    """See the module's docstring."""

    def __init__(
        self, name: str, services: ClientServices, loop: SimulatedLoop, observer: Observer
    ) -> None:
        self.name = name
        self.ignores_heartbeats = False
        self.blocked = False
        self.closing = False  # has sent CLS
        self.gone = False
        self.owed: deque[Owed] = deque()
        self.on_its_way: deque[MessageFrame] = (
            deque()
        )  # handed out, and to be sent later in the turn
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
        """Whether the server reads what is sent to it."""
        return not self.gone and self._transport.reading

    def send(self, data: bytes, *owed: Owed, cut: int = 0, in_one_turn: bool = True) -> None:
        """Sends commands; if `cut`, in two pieces, between which the loop may go on."""
        self.owed.extend(owed)
        at = cut % len(data) if cut else 0
        if at:
            self.server.data_received(data[:at])
            if not in_one_turn:
                self._loop.run_ready()
        if not self.gone:
            self.server.data_received(data[at:])

    def stop_reading(self) -> None:
        """From now on what the server writes waits in its buffer."""
        if not self.blocked and not self.gone:
            self.blocked = True
            self.server.pause_writing()

    def resume_reading(self) -> None:
        """Takes what has waited, and all that comes."""
        if self.blocked and not self.gone:
            self.blocked = False
            self.server.resume_writing()

    def end(self) -> None:
        """Says that nothing more will be sent."""
        if not self.gone and not self.server.eof_received():
            self._transport.close()

    def reset(self) -> None:
        """Is gone from one moment to the next."""
        if not self.gone:
            self._transport.closing = True
            self._cut_off(ConnectionResetError())

    # What the server's side of the transport does.

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
        """The server has nothing more to say: the client goes as well."""
        if not self.gone:
            self._loop.call_soon(self._cut_off, None)
            self._leave()

    def _see_reply(self, frame: ResponseFrame | ErrorFrame) -> None:
        word = frame.code if isinstance(frame, ErrorFrame) else frame.data.decode()
        if self.owed and word.startswith("{"):
            word = "JSON"
        if self.owed and self.owed[0].word == word:
            self._observer.acknowledged(self.owed.popleft().bodies)
        elif isinstance(frame, ErrorFrame):
            self._observer.refused(self, frame)
        else:
            expected = self.owed[0].word if self.owed else "nothing"
            raise ViolationError(f"{self.name} was answered {word}, and was owed {expected}")

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
