"""Browser connections: uvicorn's HTTP protocol, with limits for slow requests and large headers."""

import asyncio
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["LimitedHttpProtocol"]

HEAD_BYTES_MAX = 64 * 1024

HEAD_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\n"
    b"\r\n"
    b"Request headers too large."
)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes the connection if a request takes too long to arrive or its headers are too large."""

    def __init__(
        self, config: Config, server_state: ServerState, *, request_seconds_max: float
    ) -> None:
        super().__init__(config, server_state, {})
        self._request_seconds_max = request_seconds_max
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._head_bytes = 0
        self._is_rejected = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        # The first read of the headers does not count: it may also contain a previous body.
        if was_in_head and self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._reject()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    # Called by the parser.

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

    # Called by the daemon.

    def abort_unanswered(self) -> None:
        """Close the connection now if its response is not complete."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()

    # Helpers.

    def _reject(self) -> None:
        """Send an error, then discard input until the peer closes or the timer ends.

        Closing at once would lose the response: the kernel resets a connection that is closed
        while it has unread input.
        """
        self._is_rejected = True
        self.transport.write(HEAD_TOO_LARGE_RESPONSE)
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
