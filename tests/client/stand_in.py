"""A peer with misbehaviour that a real nsqd does not show, on a real socket in a thread.

It parses commands with the server side of `penstock.protocol`, records them, and answers IDENTIFY
and SUB. The test decides how and when it answers publishes.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.protocol import frames
from penstock.protocol.events import Event, Identify, Limits, Publish, Rdy, Sub
from penstock.protocol.server import ServerConnection

__all__ = ["StandIn", "stand_in"]


class StandIn:
    """The peer; created by `stand_in`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._sockets: list[socket.socket] = []
        self.heard: list[Event] = []
        self.answers_publishes = True
        """If not, OKs are kept back until `release`."""
        self.messages = 0
        """How many it delivers when it is asked to."""
        self.is_silent = False
        """Not a word, to anything."""
        self.raw_answer = b""
        """What it says instead of NSQ."""
        self._owed: list[tuple[socket.socket, bytes]] = []

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    @property
    def published(self) -> list[list[bytes]]:
        """The bodies of each received publish event."""
        return [event.bodies for event in list(self.heard) if isinstance(event, Publish)]

    def release(self) -> None:
        """Send the OKs that were held back, and hold back no more."""
        self.answers_publishes = True
        while self._owed:
            sock, answer = self._owed.pop(0)
            sock.sendall(answer)

    def serve(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _talk(self, sock: socket.socket) -> None:
        connection = ServerConnection(Limits())
        with suppress(OSError):
            while data := sock.recv(65536):
                if self.raw_answer:
                    sock.sendall(self.raw_answer)
                    continue
                connection.receive_data(data)
                while (event := connection.next_event()) is not None:
                    self._hear(sock, event)

    def _hear(self, sock: socket.socket, event: Event) -> None:
        self.heard.append(event)
        if self.is_silent:
            return
        match event:
            case Identify():
                sock.sendall(frames.response(b"{}"))
            case Sub():
                sock.sendall(frames.OK)
            case Rdy(count) if count and self.messages:
                sock.sendall(b"".join(frames.render_messages([b"x"] * self.messages, 1, 1)))
            case Publish(oks=oks) if self.answers_publishes:
                sock.sendall(frames.OK * oks)
            case Publish(oks=oks):
                self._owed.append((sock, frames.OK * oks))
            case _:
                pass


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Listen for the duration of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = StandIn(listener)
        thread = threading.Thread(target=peer.serve, daemon=True)
        thread.start()
        try:
            yield peer
        finally:
            peer.close()
            thread.join(120)
