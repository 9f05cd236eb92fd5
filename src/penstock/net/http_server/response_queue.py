"""The answers of one connection, on their way out in the order of the requests.

Most answers are there at once and are only collected, to leave in one write with the others of the
same read. An answer that is a promise holds back those behind it until it is kept. One that is a
stream goes out piece by piece, at the pace of the peer, as a task of its own.

`is_full` says that the peer should not be read: it does not take what it asked for, or too much of
it is waiting, or something that has to be finished before the next request is served.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TypeAlias

from penstock.common.durations import format_duration
from penstock.net.http_server.deferred_response import Promise
from penstock.net.http_server.errors import CutShort, HttpError
from penstock.net.http_server.requests import Peer
from penstock.net.http_server.responses import INTERNAL_ERROR, Response, Streaming
from penstock.net.http_server.route_cache import Plan
from penstock.net.http_server.state import ServerState

__all__ = ["Answer", "Outbox"]

# Answers collected before they are written although more requests are at hand. With it, a read full
# of small requests with large answers ends at the peer's, not at our memory's, capacity.
COLLECTED_BYTES_MAX = 64 * 1024

Answer = Response | Streaming
Promised = Promise | asyncio.Future[object]

Place: TypeAlias = tuple[Plan, int, Promised | Streaming]
"""Of an answer that is not there yet, or is a stream; with the time of its request if that is to be
logged."""


class Outbox:
    """Belongs to one connection, which it tells by `on_progress` that something has left."""

    __slots__ = (
        "_collected_bytes",
        "_drained",
        "_is_exclusive",
        "_kept",
        "_on_progress",
        "_peer",
        "_state",
        "_streaming",
        "_transport",
        "_write",
        "collected",
        "is_last",
        "is_writable",
        "waiting",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        peer: Peer,
        state: ServerState,
        on_progress: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._peer = peer
        self._state = state
        self._on_progress = on_progress
        self._write = transport.write
        self._kept = self._on_kept  # made once, not with each promise
        self.collected: list[bytes] = []
        self._collected_bytes = 0
        self._is_exclusive = False
        self._drained: asyncio.Future[None] | None = None
        self._streaming: asyncio.Task[None] | None = None
        self.waiting: deque[bytes | Place] = deque()  # a promise, and what is behind it
        self.is_writable = True
        self.is_last = False  # after the answers that are here, the connection will be closed

    def is_full(self) -> bool:
        """Whether the peer has to take something before it may ask for more."""
        return (
            not self.is_writable
            or self._is_exclusive
            or len(self.waiting) >= self._state.limits.pipelined_max
        )

    def put(self, wire: bytes) -> None:
        """Sends `wire` after everything that was asked for before."""
        if self.waiting:
            self.waiting.append(wire)
        else:
            self._collect(wire)

    def answer(self, plan: Plan, answer: Answer, started_ns: int) -> None:
        """Sends an answer that is there."""
        if isinstance(answer, Response):
            if started_ns:
                self.log(plan, answer.status, started_ns)
            self.put(self._wire(plan, answer, is_last=self.is_last))
        else:
            self._is_exclusive = True
            self.waiting.append((plan, started_ns, answer))
            self._settle()

    def promise(self, plan: Plan, promise: Promise, started_ns: int) -> None:
        """Keeps the place of an answer that was promised."""
        self.waiting.append((plan, started_ns, promise))
        promise.when_kept(self._kept)

    def wait_for(
        self,
        plan: Plan,
        result: asyncio.Future[object] | Coroutine[object, object, object],
        started_ns: int,
    ) -> None:
        """Keeps the place of an answer that will be what `result` yields."""
        if not isinstance(result, asyncio.Future):
            result = asyncio.ensure_future(result)
            self._state.tasks.add(result)
            self._is_exclusive = True
        self.waiting.append((plan, started_ns, result))
        result.add_done_callback(self._on_done)

    def flush(self) -> None:
        """Writes what has been collected."""
        write = self._write  # Behind a dot, methods would be looked for first.
        write(b"".join(self.collected))
        self.collected.clear()
        self._collected_bytes = 0

    def pause(self) -> None:
        """The peer has too much of ours to read."""
        self.is_writable = False

    def resume(self) -> None:
        """The peer has read it."""
        self.is_writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def abandon(self) -> None:
        """The peer has gone."""
        self.collected.clear()
        self.waiting.clear()
        if self._streaming is not None:
            self._streaming.cancel()

    def failure(self, plan: Plan) -> Response:
        """The answer to a request over which our own code has stumbled: to be called from the
        handler of the exception.
        """
        line = plan.head.line
        self._state.log.exception("HTTP: failure in %s %s", line.method, line.path)  # noqa: LOG004
        return INTERNAL_ERROR

    def log(self, plan: Plan, status: int, started_ns: int) -> None:
        """Logs a request, as it is answered."""
        line = plan.head.line
        self._state.log.info(
            "%d %s %s (%s) %s",
            status,
            line.method,
            line.target.decode(),
            self._peer.address,
            format_duration(time.perf_counter_ns() - started_ns),
        )

    def _collect(self, wire: bytes) -> None:
        self.collected.append(wire)
        self._collected_bytes += len(wire)
        if self._collected_bytes > COLLECTED_BYTES_MAX:
            self.flush()

    def _wire(self, plan: Plan, response: Response, *, is_last: bool) -> bytes:
        """The bytes of an answer, which from here on counts as given."""
        self._state.answers[response.status] += 1
        if plan.is_plain and not is_last:
            return response.wire(self._state.date)
        line = plan.head.line
        return response.wire_to(
            self._state.date,
            http_11=line.http_11,
            keep_alive=not is_last,
            head_only=line.method == "HEAD",
        )

    def _on_done(self, future: asyncio.Future[object]) -> None:
        self._state.tasks.discard(future)
        if not self.waiting:
            self._log_unheard_failure(future)
        self._on_kept()

    def _on_kept(self) -> None:
        if self.waiting:  # the peer is there
            self._settle()
            self._on_progress()

    def _log_unheard_failure(self, future: "asyncio.Future[object]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, HttpError):
            self._state.log.error("HTTP: failure in a request whose peer has gone: %r", error)

    def _settle(self) -> None:
        """Collects the answers that have become ready, up to the first that has not."""
        waiting = self.waiting
        while waiting and self._streaming is None:
            wire = waiting[0]
            if not isinstance(wire, bytes):
                plan, started_ns, promised = wire
                answer = promised.outcome if isinstance(promised, Promise) else None
                if type(answer) is not Response:  # which it nearly always is
                    answer = self._maybe_answer(plan, promised)
                if answer is None:
                    return
                if started_ns:
                    self.log(plan, answer.status, started_ns)
                if isinstance(answer, Streaming):
                    self._streaming = asyncio.ensure_future(self._stream(plan, answer))
                    return
                wire = self._wire(plan, answer, is_last=self.is_last and len(waiting) == 1)
            waiting.popleft()
            self.collected.append(wire)  # They are few: so many may wait.
        if not waiting:
            self._is_exclusive = False

    def _maybe_answer(self, plan: Plan, promised: Promised | Streaming) -> Answer | None:
        """What was promised, once it is there."""
        if isinstance(promised, Streaming):
            return promised
        if not promised.done():
            return None
        try:
            return plan.in_envelope(promised.result())
        except HttpError as error:
            return plan.endpoint.envelope.refuse(error)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 (it is logged, with traceback)
            return self.failure(plan)

    async def _stream(self, plan: Plan, response: Streaming) -> None:
        try:
            await self._send(plan, response)
        except asyncio.CancelledError:
            return  # The peer has gone.
        except CutShort as reason:
            line = plan.head.line
            self._state.log.error("HTTP: %s %s is cut short - %s", line.method, line.path, reason)
            self._transport.abort()
            return
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            # Too late for another answer: that the body is cut short is all that we can show.
            self.failure(plan)
            self._transport.abort()
            return
        finally:
            await response.close()
        self._streaming = None
        self.waiting.popleft()
        self._settle()
        self._on_progress()

    async def _send(self, plan: Plan, response: Streaming) -> None:
        line = plan.head.line
        self._state.answers[response.status] += 1
        is_chunked = response.length is None and line.http_11
        if response.length is None and not is_chunked:
            self.is_last = True  # Only the end of the connection will tell where the body ends.
        is_last = self.is_last and len(self.waiting) == 1
        self._collect(
            response.head_wire(self._state.date, http_11=line.http_11, keep_alive=not is_last)
        )
        if line.method == "HEAD":
            return
        async for piece in response.checked_pieces():
            self._collect(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            self._on_progress()
            await self._let_others_run()
        if is_chunked:
            self._collect(b"0\r\n\r\n")

    async def _let_others_run(self) -> None:
        if self.is_writable:
            await asyncio.sleep(0)
        else:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
