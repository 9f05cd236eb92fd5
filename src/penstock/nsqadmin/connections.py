"""A browser's connection: uvicorn's, with limits on how long a request may take to arrive, and on
how much comes before its body. Who is slower, or sends more, is cut off.
"""

import asyncio
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["Connection"]

HEAD_BYTES_MAX = 64 * 1024

TOO_MUCH = (
    b"HTTP/1.1 400 Bad Request\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\n"
    b"\r\n"
    b"Too much comes before the body."
)


class Connection(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(
        self, config: Config, server_state: ServerState, *, request_seconds_max: float
    ) -> None:
        super().__init__(config, server_state, {})
        self._request_seconds_max = request_seconds_max
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._head_bytes = 0
        self._is_refused = False

    # What the loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        # The read in which a head begins does not count: what comes before it may be a body.
        if was_in_head and self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()

    # What the daemon calls.

    def cut_off(self) -> None:
        """Ends it now, if there is an answer that it still waits for."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()

    # Within.

    def _refuse(self) -> None:
        """Answers, and reads on until the peer ends or its time is up. If we closed at once, what
        it has still sent would have the kernel reset the connection, and the answer be lost."""
        self._is_refused = True
        self.transport.write(TOO_MUCH)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._request_seconds_max, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
