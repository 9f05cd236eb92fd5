"""One HTTP/1.1 connection: reads requests, calls their endpoints, and queues the responses.

`HttpServerConnection.data_received` looks up the request's head in the route cache, reads the body
and calls the handler. The responses to all requests of one read leave in one write. No task and no
await is involved, unless a handler returns an awaitable or a stream.

`ResponseQueue` keeps the responses in the order of the requests. A response that is not ready yet
holds back those after it. A streamed response is sent piece by piece by its own task.

Three limits bound the cost of a client. While its queue is full, the connection is not read
(`_is_paused`). After its requests have kept the loop busy for TURN_SECONDS, other connections run
first. And the server closes connections whose `deadline` has passed: those that take too long over
a head, a body, our responses, or between requests.

After its last response (`_has_ended`) a connection handles no more requests, but stays open until
the client has had time to read that response. If it closed while the client is still sending, the
client's kernel would discard the response.
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from penstock.common.addresses import host_of
from penstock.common.durations import format_duration
from penstock.common.logs import Logger
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.http_server.parsing import (
    BadRequestError,
    Body,
    BodyTooLargeError,
    is_valid_head_prefix,
)
from penstock.net.http_server.responses import (
    INTERNAL_ERROR,
    DeferredResponse,
    HttpError,
    Response,
    StreamAbortedError,
    StreamingResponse,
)
from penstock.net.http_server.routing import HttpClientInfo, Request, RouteCache, RoutedHead
from penstock.net.listener import peer_address

__all__ = ["HttpLimits", "HttpServerConnection", "Middleware", "ServerState"]

HEAD_END = b"\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# An incomplete head is checked for garbage up to this size. Checking all of it after each byte
# would take quadratic time.
CHECKED_PREFIX_BYTES_MAX = 1024

# How long the requests of one connection may run before others have their turn: one read can hold
# thousands of requests.
TURN_SECONDS = 0.005

# Ready responses are written once they exceed this size, although more requests have been read.
# Small requests with large responses are then limited by the client's reading, not by our memory.
READY_BYTES_MAX = 64 * 1024

# Is called with every request before its body is read, and may respond in place of the route.
Middleware = Callable[[Request], Response | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of one connection."""

    head_bytes_max: int = 1 << 20  # Go's
    pipelined_max: int = 128  # requests whose responses are not ready
    head_seconds: float = 30  # from the connection's start or the first byte of a head to its last
    body_seconds: float = 60
    idle_seconds: float = 120  # between requests
    write_seconds: float = 60  # without progress of the client in reading our responses
    linger_seconds: float = 1  # for the client to read our last response

    @property
    def shortest_seconds(self) -> float:
        """The shortest timeout: deadlines have to be checked at least this often."""
        return min(
            self.head_seconds,
            self.body_seconds,
            self.idle_seconds,
            self.write_seconds,
            self.linger_seconds,
        )


@dataclass(slots=True)
class ServerState:
    """State that the connections of one server share. Belongs to one event loop."""

    route_cache: RouteCache
    limits: HttpLimits
    log: Logger
    middleware: tuple[Middleware, ...]
    connection_limits: ConnectionLimits

    connections: "set[HttpServerConnection]" = field(default_factory=set)
    all_closed: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopping: bool = False
    # Tasks of endpoints: the loop keeps only weak references.
    tasks: "set[asyncio.Future[object]]" = field(default_factory=set)
    rejections_by_status: Counter[int] = field(default_factory=Counter)
    responses_by_status: dict[int, int] = field(default_factory=partial(defaultdict, int))

    # Updated about once a second, which is exact enough for timeouts and the Date header.
    now: float = 0.0
    idle_deadline: float = 0.0
    date_line: bytes = b""


class HttpServerConnection(asyncio.Protocol):
    """Serves one client."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._routed_heads = state.route_cache.heads
        self._transport: asyncio.Transport
        self._queue: ResponseQueue
        self.deadline = state.now + state.limits.head_seconds

        self._unread = bytearray()  # the start of a head; while paused, everything received
        self._body: Body | None = None
        self._routed: RoutedHead | None = None  # of the request whose body is being read
        self._is_paused = False
        self._has_yielded_turn = False
        self._turn_ends_at = 0.0

        self._is_finishing = False  # the next response is the last
        self._has_client_ended = False  # the client sends no more, but may still be reading
        self._has_ended = False
        self._is_admitted = False

    # HttpClientInfo, for endpoints.

    @property
    def address(self) -> str:
        """The client's `host:port`, or `@` on a unix socket."""
        return peer_address(self._transport)

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self._transport.get_extra_info("ssl_object") is not None

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._queue = ResponseQueue(self._transport, self, self._state, self._on_progress)
        self._state.connections.add(self)
        self._state.all_closed.clear()
        self._host = host_of(self.address)
        if self._state.is_stopping:
            self._close()  # Accepted before the listener closed; the endpoints may be gone.
            return
        refusal = self._state.connection_limits.rejection(self._host)
        if refusal is None:
            self._state.connection_limits.add(self._host)
            self._is_admitted = True
        else:
            self._reject(BadRequestError(503, refusal))
            self._on_progress()

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        if self._is_paused:
            # Only now, because a disconnect is only noticed while the transport reads.
            self._transport.pause_reading()
            self._unread += data
            return
        self._turn_ends_at = time.monotonic() + TURN_SECONDS
        if self._body is not None or self._unread:
            data = self._continue_request(data)
        if data:
            self._handle_requests(data)
        if self._queue.ready:
            self._queue.flush()
        if self._has_ended:
            self._maybe_close()

    def eof_received(self) -> bool:
        self._has_client_ended = True
        self._queue.on_client_ended()
        if self._has_ended or not self._is_paused:
            self._end_with_client()
        else:
            self._reset_deadline()
        return not self._transport.is_closing() and not self.is_secure

    def pause_writing(self) -> None:
        self._queue.pause_writing()
        self._reset_deadline()
        self._is_paused = True

    def resume_writing(self) -> None:
        self._queue.resume_writing()
        self._reset_deadline()
        self._maybe_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._queue.discard()
        if self._is_admitted:
            self._state.connection_limits.remove(self._host)
        self._state.connections.discard(self)
        if not self._state.connections:
            self._state.all_closed.set()

    # For the server.

    def expire(self) -> None:
        """Ends the connection because its deadline has passed."""
        queue = self._queue
        if queue.pending and queue.is_writable and not self._has_client_ended:
            return  # The client is waiting for our response.
        if self._has_ended or not queue.is_writable:
            self.abort()
            return
        if self._unread or self._body is not None:
            self._reject(BadRequestError(408))
            self._on_progress()
        else:
            self._close()

    def finish(self) -> None:
        """Ends the connection after the responses to all received requests."""
        self._is_finishing = True
        if self._queue.pending:
            self._end()
        elif not self._unread and self._body is None:
            self._close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    # From bytes to requests.

    def _handle_requests(self, data: bytes) -> None:
        """Handles the requests in `data`, which begins with a head."""
        routed_heads, start, size = self._routed_heads, 0, len(data)
        while start < size and not self._is_paused:
            end = data.find(HEAD_END, start) + 4
            if end < 4:
                self._keep_head_prefix(data[start:])
                return
            raw_head = data[start:end]
            routed = routed_heads.get(raw_head)
            if routed is None:
                if data.startswith(b"\r\n", start):
                    start += 2  # Some clients send a line end after the body.
                    continue
                routed = self._maybe_route(raw_head)
                if routed is None:
                    return
            if routed.has_plain_body and (after := end + routed.body_size) <= size:
                self._handle(routed, data[end:after])
                start = after
            else:
                start = self._start_body(routed, data, end)
            if start < size and time.monotonic() > self._turn_ends_at:
                self._yield_turn()
        if start < size and not self._has_ended:
            self._unread += data[start:]
        elif self._body is None and not self._queue.pending:
            self._reset_deadline()

    def _maybe_route(self, raw_head: bytes) -> RoutedHead | None:
        """Routes a head that is not cached. If it is malformed, rejects it and returns None."""
        try:
            return self._state.route_cache.route(raw_head)
        except BadRequestError as error:
            self._reject(error)
            return None

    def _keep_head_prefix(self, prefix: bytes) -> None:
        self._unread += prefix
        self.deadline = self._state.now + self._state.limits.head_seconds
        self._check_head_prefix()

    def _check_head_prefix(self) -> None:
        while self._unread.startswith(b"\r\n"):
            del self._unread[:2]
        size = len(self._unread)
        if size > self._state.limits.head_bytes_max:
            self._reject(BadRequestError(431))
        elif 0 < size <= CHECKED_PREFIX_BYTES_MAX and not is_valid_head_prefix(self._unread):
            self._reject(BadRequestError())

    def _continue_request(self, data: bytes) -> bytes:
        """Continues the request that an earlier read began; returns the data to handle next."""
        if self._body is not None:
            return data[self._read_body(data, 0) :]
        searched = max(len(self._unread) - len(HEAD_END) + 1, 0)
        self._unread += data
        if self._unread.find(HEAD_END, searched) < 0:
            self._check_head_prefix()
            return b""
        return self._take_unread()

    def _take_unread(self) -> bytes:
        data = bytes(self._unread)
        self._unread.clear()
        return data

    def _start_body(self, routed: RoutedHead, data: bytes, start: int) -> int:
        """Runs the middleware, then reads the body; returns the index after it."""
        if self._state.middleware:
            routed = self._run_middleware(routed)
        if routed.early_response is not None:
            self._respond_without_body(routed, routed.early_response)
            return len(data)
        if routed.head.expects_continue:
            self._queue.add_bytes(CONTINUE)
            if self._queue.ready:
                self._queue.flush()
        self._routed, self._body = routed, routed.new_body()
        self._reset_deadline()
        return self._read_body(data, start)

    def _run_middleware(self, routed: RoutedHead) -> RoutedHead:
        request = Request(routed.head, routed.params, b"", self)
        try:
            for middleware in self._state.middleware:
                response = middleware(request)
                if response is not None:
                    return routed.with_response(response)
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            return routed.with_response(self._queue.log_exception(routed))
        return routed

    def _read_body(self, data: bytes, start: int) -> int:
        routed, body = self._routed, self._body
        assert routed is not None
        assert body is not None
        try:
            start = body.feed(data, start)
        except BodyTooLargeError:
            self._respond_without_body(routed, routed.endpoint.too_large)
            return len(data)
        except BadRequestError as error:
            self._reject(error)
            return len(data)
        if body.is_complete:
            self._routed = self._body = None
            self._handle(routed, body.take())
            self._reset_deadline()
        return start

    # From requests to responses.

    def _handle(self, routed: RoutedHead, body: bytes) -> None:
        """Calls the handler of a request and queues the response."""
        started_ns = time.perf_counter_ns() if routed.is_logged else 0
        if self._is_finishing or not routed.is_keep_alive:
            self._end()
        try:
            handler = routed.handler
            result = handler(Request(routed.head, routed.params, body, self))
            if isinstance(result, DeferredResponse):
                self._queue.add_deferred(routed, result, started_ns)
                if len(self._queue.pending) > 1:  # A single one cannot fill the queue.
                    self._maybe_pause()
                return
            if type(result) is Response:
                response: AnyResponse = result
            elif isinstance(result, asyncio.Future) or asyncio.iscoroutine(result):
                self._queue.add_awaitable(routed, result, started_ns)
                self._maybe_pause()
                return
            else:
                response = routed.to_response(result)
        except HttpError as error:
            response = routed.endpoint.response_format.failure(error)
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            response = self._queue.log_exception(routed)
        self._queue.add(routed, response, started_ns)
        if type(response) is not Response:
            self._maybe_pause()

    def _on_progress(self) -> None:
        if self._queue.ready:
            self._queue.flush()
        if self._queue.is_last:
            self._end()
        self._reset_deadline()
        if self._has_ended:
            self._maybe_close()
        elif self._is_paused:
            self._maybe_resume()

    # Backpressure and deadlines.

    def _maybe_pause(self) -> None:
        if self._queue.is_full():
            self._is_paused = True
            self._reset_deadline()

    def _yield_turn(self) -> None:
        """Pauses until other connections have had their turn."""
        if not self._has_yielded_turn:
            self._has_yielded_turn = self._is_paused = True
            self._reset_deadline()
            asyncio.get_running_loop().call_soon(self._continue_turn)

    def _continue_turn(self) -> None:
        self._has_yielded_turn = False
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if (
            not self._is_paused
            or self._has_yielded_turn
            or self._has_ended
            or self._queue.is_full()
        ):
            return
        self._is_paused = False
        if self._unread:
            self.data_received(self._take_unread())
        if self._is_paused:
            return
        if self._has_client_ended:
            self._end_with_client()
        else:
            self._transport.resume_reading()

    def _reset_deadline(self) -> None:
        """Starts the timeout of the connection's current state anew."""
        state, queue = self._state, self._queue
        if queue.pending or not queue.is_writable:
            # If a client neither reads nor sends for long, its connection is taken for lost.
            self.deadline = state.now + state.limits.write_seconds
        elif self._body is not None:
            self.deadline = state.now + state.limits.body_seconds
        else:
            self.deadline = state.idle_deadline

    # The end.

    def _reject(self, error: BadRequestError) -> None:
        """Responds to malformed HTTP, and ends the connection."""
        self._state.rejections_by_status[error.status] += 1
        self._state.log.debug("HTTP: refused a request of %s: %s", self.address, error)
        self._end()
        self._queue.add_bytes(error.to_bytes())

    def _respond_without_body(self, routed: RoutedHead, response: Response) -> None:
        """Responds to a request without reading its body, and ends the connection."""
        self._state.rejections_by_status[response.status] += 1
        self._end()
        started_ns = time.perf_counter_ns() if routed.is_logged else 0
        self._queue.add(routed, response, started_ns)

    def _end_with_client(self) -> None:
        """Responds to all requests that came before the client stopped sending, and closes."""
        if self._unread or self._body is not None:
            self._reject(BadRequestError())
        self._end()
        self._on_progress()

    def _end(self) -> None:
        """Stops handling requests."""
        self._has_ended = self._queue.is_last = True
        self._is_paused = True  # ends the loop over requests
        self._routed = self._body = None
        self._unread.clear()

    def _maybe_close(self) -> None:
        """Closes the writing side once the last response has been written."""
        if self._queue.pending:
            return
        if self._has_client_ended:
            self._close()
            return
        limits, is_sent = self._state.limits, not self._transport.get_write_buffer_size()
        seconds = limits.linger_seconds if is_sent else limits.write_seconds
        self.deadline = self._state.now + seconds
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Closes after everything is sent, or when the write timeout has passed."""
        self._end()
        self.deadline = self._state.now + self._state.limits.write_seconds
        self._transport.close()


AnyResponse = Response | StreamingResponse
Awaited = DeferredResponse | asyncio.Future[object]

PendingResponse: TypeAlias = tuple[RoutedHead, int, Awaited | StreamingResponse]
"""A response that is not ready, or a stream. The number is the start time of the request, in
nanoseconds, or 0 if the request is not logged."""


class ResponseQueue:
    """The responses of one connection, in the order of the requests.

    Calls `on_progress` after pending responses have become ready.
    """

    __slots__ = (
        "_client",
        "_drained",
        "_is_exclusive",
        "_on_progress",
        "_on_resolved_callback",
        "_ready_bytes",
        "_state",
        "_stream_task",
        "_transport",
        "_write",
        "is_last",
        "is_writable",
        "pending",
        "ready",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        client: HttpClientInfo,
        state: ServerState,
        on_progress: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._client = client
        self._state = state
        self._on_progress = on_progress
        self._write = transport.write
        self._on_resolved_callback = self._on_resolved  # saves a bound method per request
        self.ready: list[bytes] = []  # written by the next flush
        self._ready_bytes = 0
        self._is_exclusive = False  # the next request must wait for the pending response
        self._drained: asyncio.Future[None] | None = None
        self._stream_task: asyncio.Task[None] | None = None
        # The first response that is not ready, and all after it.
        self.pending: deque[bytes | PendingResponse] = deque()
        self.is_writable = True
        self.is_last = False  # the connection closes after the responses in the queue

    def is_full(self) -> bool:
        """Whether the connection must not read further requests now."""
        return (
            not self.is_writable
            or self._is_exclusive
            or len(self.pending) >= self._state.limits.pipelined_max
        )

    def add_bytes(self, data: bytes) -> None:
        """Adds a complete response in its wire form."""
        if self.pending:
            self.pending.append(data)
        else:
            self._add_ready(data)

    def add(self, routed: RoutedHead, response: AnyResponse, started_ns: int) -> None:
        """Adds a complete or a streamed response."""
        if isinstance(response, Response):
            if started_ns:
                self._log_request(routed, response.status, started_ns)
            self.add_bytes(self._render(routed, response, is_last=self.is_last))
        else:
            self._is_exclusive = True
            self.pending.append((routed, started_ns, response))
            self._collect_ready()

    def add_deferred(self, routed: RoutedHead, deferred: DeferredResponse, started_ns: int) -> None:
        """Adds a response that the endpoint resolves later."""
        self.pending.append((routed, started_ns, deferred))
        deferred.set_callback(self._on_resolved_callback)

    def add_awaitable(
        self,
        routed: RoutedHead,
        result: asyncio.Future[object] | Coroutine[object, object, object],
        started_ns: int,
    ) -> None:
        """Adds the result of a future or coroutine. The next request waits for a coroutine."""
        if not isinstance(result, asyncio.Future):
            result = asyncio.ensure_future(result)
            self._state.tasks.add(result)
            self._is_exclusive = True
        self.pending.append((routed, started_ns, result))
        result.add_done_callback(self._on_done)

    def flush(self) -> None:
        """Writes the ready responses."""
        write = self._write  # Local alias: skips one attribute lookup per call.
        write(b"".join(self.ready))
        self.ready.clear()
        self._ready_bytes = 0

    def pause_writing(self) -> None:
        """Stops streaming, because the client does not read."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Continues streaming."""
        self.is_writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def on_client_ended(self) -> None:
        """Notifies the endpoints of pending responses that the client sends no more."""
        self._notify_client_ended(tuple(self.pending))

    def discard(self) -> None:
        """Drops all responses, because the client has disconnected."""
        pending = tuple(self.pending)
        self.ready.clear()
        self.pending.clear()
        self._notify_client_ended(pending)
        if self._stream_task is not None:
            self._stream_task.cancel()

    def log_exception(self, routed: RoutedHead) -> Response:
        """Logs the exception that is being handled; returns the response to its request."""
        line = routed.head.line
        self._state.log.exception("HTTP: failure in %s %s", line.method, line.path)  # noqa: LOG004
        return INTERNAL_ERROR

    def _notify_client_ended(self, pending: tuple[bytes | PendingResponse, ...]) -> None:
        for item in pending:
            awaited = None if isinstance(item, bytes) else item[2]
            if isinstance(awaited, DeferredResponse) and not awaited.done():
                awaited.on_client_ended()

    def _log_request(self, routed: RoutedHead, status: int, started_ns: int) -> None:
        line = routed.head.line
        self._state.log.info(
            "%d %s %s (%s) %s",
            status,
            line.method,
            line.target.decode(),
            self._client.address,
            format_duration(time.perf_counter_ns() - started_ns),
        )

    def _add_ready(self, data: bytes) -> None:
        self.ready.append(data)
        self._ready_bytes += len(data)
        if self._ready_bytes > READY_BYTES_MAX:
            self.flush()

    def _render(self, routed: RoutedHead, response: Response, *, is_last: bool) -> bytes:
        """The wire form of a response, which is counted as sent."""
        self._state.responses_by_status[response.status] += 1
        if routed.has_plain_response and not is_last:
            return response.to_bytes(self._state.date_line)
        line = routed.head.line
        return response.render(
            self._state.date_line,
            is_http_11=line.is_http_11,
            keep_alive=not is_last,
            head_only=line.method == "HEAD",
        )

    def _on_done(self, future: asyncio.Future[object]) -> None:
        self._state.tasks.discard(future)
        if not self.pending:
            self._log_late_failure(future)
        self._on_resolved()

    def _on_resolved(self) -> None:
        if self.pending:  # The client is still connected.
            self._collect_ready()
            self._on_progress()

    def _log_late_failure(self, future: "asyncio.Future[object]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, HttpError):
            self._state.log.error("HTTP: failure in a request whose client is gone: %r", error)

    def _collect_ready(self) -> None:
        """Moves responses from `pending` to `ready`, up to the first that is not ready."""
        pending = self.pending
        while pending and self._stream_task is None:
            data = pending[0]
            if not isinstance(data, bytes):
                routed, started_ns, awaited = data
                response = awaited.outcome if isinstance(awaited, DeferredResponse) else None
                if type(response) is not Response:  # Nearly always it is: this skips a call.
                    response = self._maybe_response(routed, awaited)
                if response is None:
                    return
                if started_ns:
                    self._log_request(routed, response.status, started_ns)
                if isinstance(response, StreamingResponse):
                    self._stream_task = asyncio.ensure_future(self._stream(routed, response))
                    return
                data = self._render(routed, response, is_last=self.is_last and len(pending) == 1)
            pending.popleft()
            self.ready.append(data)  # At most `pipelined_max`, so READY_BYTES_MAX is not checked.
        if not pending:
            self._is_exclusive = False

    def _maybe_response(
        self, routed: RoutedHead, awaited: Awaited | StreamingResponse
    ) -> AnyResponse | None:
        """The response, or None if it is not ready."""
        if isinstance(awaited, StreamingResponse):
            return awaited
        if not awaited.done():
            return None
        try:
            return routed.to_response(awaited.result())
        except HttpError as error:
            return routed.endpoint.response_format.failure(error)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 (it is logged, with traceback)
            return self.log_exception(routed)

    async def _stream(self, routed: RoutedHead, response: StreamingResponse) -> None:
        try:
            await self._send_stream(routed, response)
        except asyncio.CancelledError:
            return  # The client has disconnected.
        except StreamAbortedError as error:
            line = routed.head.line
            self._state.log.error("HTTP: %s %s is cut short - %s", line.method, line.path, error)
            self._transport.abort()
            return
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            # The status has been sent, so the error can only show as an incomplete body.
            self.log_exception(routed)
            self._transport.abort()
            return
        finally:
            await response.close()
        self._stream_task = None
        self.pending.popleft()
        self._collect_ready()
        self._on_progress()

    async def _send_stream(self, routed: RoutedHead, response: StreamingResponse) -> None:
        line = routed.head.line
        self._state.responses_by_status[response.status] += 1
        is_chunked = response.length is None and line.is_http_11
        if response.length is None and not is_chunked:
            self.is_last = True  # The body ends with the connection.
        is_last = self.is_last and len(self.pending) == 1
        self._add_ready(
            response.render_head(
                self._state.date_line, is_http_11=line.is_http_11, keep_alive=not is_last
            )
        )
        if line.method == "HEAD":
            return
        async for piece in response.checked_pieces():
            self._add_ready(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            self._on_progress()
            await self._wait_until_writable()
        if is_chunked:
            self._add_ready(b"0\r\n\r\n")

    async def _wait_until_writable(self) -> None:
        """Always lets other tasks run once."""
        if self.is_writable:
            await asyncio.sleep(0)
        else:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
