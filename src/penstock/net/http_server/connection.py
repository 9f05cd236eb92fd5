"""One HTTP/1.1 connection: bytes in, requests to their endpoints, answers to the outbox.

The way of a request: `data_received` finds its head and the plan for it, reads its body and calls
the endpoint; all answers to what one read brought leave in one write. No task and no await is
involved, unless the endpoint returns a promise.

Three things bound what a peer can cost. While the outbox is full, the peer is not read
(`_is_held`); nor is it when its requests have kept us busy for a while, until others have had their
turn. And `deadline`, which the server looks at about once a second, ends a connection that takes
too long over a head, a body, our answers, or nothing at all.

After its last answer (`_has_ended`) a connection serves nothing more, but it is not closed before
the peer has had a moment to read that answer: closing on bytes that the peer is still sending would
make its kernel throw the answer away.
"""

import asyncio
import time
from typing import cast

from penstock.common.addresses import host_of
from penstock.net.http_server.bodies import Body, BodyTooBig
from penstock.net.http_server.deferred_response import Promise
from penstock.net.http_server.errors import BadRequest, HttpError
from penstock.net.http_server.head import may_become_head
from penstock.net.http_server.requests import Request
from penstock.net.http_server.response_queue import Answer, Outbox
from penstock.net.http_server.responses import Response
from penstock.net.http_server.route_cache import Plan
from penstock.net.http_server.state import ServerState
from penstock.net.listener import peer_address

__all__ = ["Connection"]

HEAD_END = b"\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# How far into a head that is not complete we look for garbage: once is enough, and looking again at
# all of it with every byte that comes would take a time that grows with its square.
JUDGED_START_BYTES_MAX = 1024


# How long the requests of one peer may keep us busy before others have their turn: one read can
# hold thousands.
TURN_SECONDS = 0.005


class Connection(asyncio.Protocol):
    """Serves one peer."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._plans = state.planner.plans
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self.deadline = state.now + state.limits.head_seconds

        self._unread = bytearray()  # the start of a head; while held, whatever came
        self._body: Body | None = None
        self._plan: Plan | None = None  # of the request whose body is being read
        self._is_held = False
        self._is_giving_way = False
        self._turn_ends_at = 0.0

        self._is_finishing = False  # the next answer is the last
        self._has_peer_ended = False  # it will send no more, but may still be reading
        self._has_ended = False
        self._is_admitted = False

    # What endpoints see.

    @property
    def address(self) -> str:
        """The peer's `host:port`, or `@` on a unix socket."""
        return peer_address(self._transport)

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self._transport.get_extra_info("ssl_object") is not None

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._outbox = Outbox(self._transport, self, self._state, self._on_progress)
        self._state.connections.add(self)
        self._state.all_gone.clear()
        self._host = host_of(self.address)
        if self._state.stopping:
            self._close()  # It was accepted, but too late: what would serve it may be gone.
            return
        refusal = self._state.admission.refusal(self._host)
        if refusal is None:
            self._state.admission.enter(self._host)
            self._is_admitted = True
        else:
            self._refuse(BadRequest(503, refusal))
            self._on_progress()

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        if self._is_held:
            # Not before, because only while it is read can we see that a peer has gone.
            self._transport.pause_reading()
            self._unread += data
            return
        self._turn_ends_at = time.monotonic() + TURN_SECONDS
        if self._body is not None or self._unread:
            data = self._complete(data)
        if data:
            self._serve(data)
        if self._outbox.collected:
            self._outbox.flush()
        if self._has_ended:
            self._maybe_close()

    def eof_received(self) -> bool:
        self._has_peer_ended = True
        if self._has_ended or not self._is_held:
            self._end_with_peer()
        else:
            self._reset_deadline()
        return not self._transport.is_closing() and not self.is_secure

    def pause_writing(self) -> None:
        self._outbox.pause()
        self._reset_deadline()
        self._is_held = True

    def resume_writing(self) -> None:
        self._outbox.resume()
        self._reset_deadline()
        self._maybe_release()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._outbox.abandon()
        if self._is_admitted:
            self._state.admission.leave(self._host)
        self._state.connections.discard(self)
        if not self._state.connections:
            self._state.all_gone.set()

    # What the server calls.

    def expire(self) -> None:
        """Ends the connection because its deadline has passed."""
        outbox = self._outbox
        if outbox.waiting and outbox.is_writable and not self._has_peer_ended:
            return  # Ours to answer: no fault of the peer's.
        if self._has_ended or not self._outbox.is_writable:
            self.abort()
            return
        if self._unread or self._body is not None:
            self._refuse(BadRequest(408))
            self._on_progress()
        else:
            self._close()

    def finish(self) -> None:
        """Ends the connection as soon as what it has asked for is answered."""
        self._is_finishing = True
        if self._outbox.waiting:
            self._end()
        elif not self._unread and self._body is None:
            self._close()

    def abort(self) -> None:
        """Ends the connection now."""
        self._transport.abort()

    # From bytes to requests.

    def _serve(self, data: bytes) -> None:
        """Answers the requests in `data`, which begins with a head."""
        plans, start, size = self._plans, 0, len(data)
        while start < size and not self._is_held:
            end = data.find(HEAD_END, start) + 4
            if end < 4:
                self._keep_start_of_head(data[start:])
                return
            raw_head = data[start:end]
            plan = plans.get(raw_head)
            if plan is None:
                if data.startswith(b"\r\n", start):
                    start += 2  # Some clients end a body with a line end that is not part of it.
                    continue
                plan = self._maybe_plan(raw_head)
                if plan is None:
                    return
            if plan.is_whole and (after := end + plan.body_size) <= size:
                self._answer(plan, data[end:after])
                start = after
            else:
                start = self._begin_body(plan, data, end)
            if start < size and time.monotonic() > self._turn_ends_at:
                self._give_way()
        if start < size and not self._has_ended:
            self._unread += data[start:]
        elif self._body is None and not self._outbox.waiting:
            self._reset_deadline()

    def _maybe_plan(self, raw_head: bytes) -> Plan | None:
        """The plan for a head that nobody has sent yet; None if it is bad, and has been refused."""
        try:
            return self._state.planner.plan(raw_head)
        except BadRequest as error:
            self._refuse(error)
            return None

    def _keep_start_of_head(self, start: bytes) -> None:
        self._unread += start
        self.deadline = self._state.now + self._state.limits.head_seconds
        self._judge_start_of_head()

    def _judge_start_of_head(self) -> None:
        while self._unread.startswith(b"\r\n"):
            del self._unread[:2]
        size = len(self._unread)
        if size > self._state.limits.head_bytes_max:
            self._refuse(BadRequest(431))
        elif 0 < size <= JUDGED_START_BYTES_MAX and not may_become_head(self._unread):
            self._refuse(BadRequest())

    def _complete(self, data: bytes) -> bytes:
        """Goes on with what an earlier read began; returns what is left to serve."""
        if self._body is not None:
            return data[self._read_body(data, 0) :]
        searched = max(len(self._unread) - len(HEAD_END) + 1, 0)
        self._unread += data
        if self._unread.find(HEAD_END, searched) < 0:
            self._judge_start_of_head()
            return b""
        return self._take_unread()

    def _take_unread(self) -> bytes:
        data = bytes(self._unread)
        self._unread.clear()
        return data

    def _begin_body(self, plan: Plan, data: bytes, start: int) -> int:
        """Sees to what comes between a head and the end of its body; returns where to go on."""
        if self._state.gates:
            plan = self._past_gates(plan)
        if plan.at_once is not None:
            self._leave_unread(plan, plan.at_once)
            return len(data)
        if plan.head.expects_continue:
            self._outbox.put(CONTINUE)
            if self._outbox.collected:
                self._outbox.flush()
        self._plan, self._body = plan, plan.new_body()
        self._reset_deadline()
        return self._read_body(data, start)

    def _past_gates(self, plan: Plan) -> Plan:
        request = Request(plan.head, plan.params, b"", self)
        try:
            for gate in self._state.gates:
                response = gate(request)
                if response is not None:
                    return plan.answered_by(response)
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            return plan.answered_by(self._outbox.failure(plan))
        return plan

    def _read_body(self, data: bytes, start: int) -> int:
        plan, body = self._plan, self._body
        assert plan is not None
        assert body is not None
        try:
            start = body.feed(data, start)
        except BodyTooBig:
            self._leave_unread(plan, plan.endpoint.too_big)
            return len(data)
        except BadRequest as error:
            self._refuse(error)
            return len(data)
        if body.done:
            self._plan = self._body = None
            self._answer(plan, body.take())
            self._reset_deadline()
        return start

    # From requests to answers.

    def _answer(self, plan: Plan, body: bytes) -> None:
        started_ns = time.perf_counter_ns() if plan.logged else 0
        if self._is_finishing or not plan.keep_alive:
            self._end()
        try:
            handler = plan.handler
            result = handler(Request(plan.head, plan.params, body, self))
            if isinstance(result, Promise):
                self._outbox.promise(plan, result, started_ns)
                if len(self._outbox.waiting) > 1:  # One alone fills nothing.
                    self._maybe_hold()
                return
            if type(result) is Response:
                answer: Answer = result
            elif isinstance(result, asyncio.Future) or asyncio.iscoroutine(result):
                self._outbox.wait_for(plan, result, started_ns)
                self._maybe_hold()
                return
            else:
                answer = plan.in_envelope(result)
        except HttpError as error:
            answer = plan.endpoint.envelope.refuse(error)
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            answer = self._outbox.failure(plan)
        self._outbox.answer(plan, answer, started_ns)
        if type(answer) is not Response:
            self._maybe_hold()

    def _on_progress(self) -> None:
        if self._outbox.collected:
            self._outbox.flush()
        if self._outbox.is_last:
            self._end()
        self._reset_deadline()
        if self._has_ended:
            self._maybe_close()
        elif self._is_held:
            self._maybe_release()

    # Back-pressure and deadlines.

    def _maybe_hold(self) -> None:
        if self._outbox.is_full():
            self._is_held = True
            self._reset_deadline()

    def _give_way(self) -> None:
        """Goes on once others have had their turn."""
        if not self._is_giving_way:
            self._is_giving_way = self._is_held = True
            self._reset_deadline()
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_giving_way = False
        self._maybe_release()

    def _maybe_release(self) -> None:
        if not self._is_held or self._is_giving_way or self._has_ended or self._outbox.is_full():
            return
        self._is_held = False
        if self._unread:
            self.data_received(self._take_unread())
        if self._is_held:
            return
        if self._has_peer_ended:
            self._end_with_peer()
        else:
            self._transport.resume_reading()

    def _reset_deadline(self) -> None:
        """Gives what the connection is doing now its full time."""
        state, outbox = self._state, self._outbox
        if outbox.waiting or not outbox.is_writable:
            # It may be waiting for us, or be gone: what nothing is heard of for long is gone.
            self.deadline = state.now + state.limits.write_seconds
        elif self._body is not None:
            self.deadline = state.now + state.limits.body_seconds
        else:
            self.deadline = state.idle_deadline

    # The end.

    def _refuse(self, error: BadRequest) -> None:
        """Answers what is no request."""
        self._state.refusals[error.status] += 1
        self._state.log.debug("HTTP: refused a request of %s: %s", self.address, error)
        self._end()
        self._outbox.put(error.wire())

    def _leave_unread(self, plan: Plan, response: Response) -> None:
        """Answers a request whose body will not be read."""
        self._state.refusals[response.status] += 1
        self._end()
        started_ns = time.perf_counter_ns() if plan.logged else 0
        self._outbox.answer(plan, response, started_ns)

    def _end_with_peer(self) -> None:
        """Answers what the peer has asked for before it stopped sending, and closes."""
        if self._unread or self._body is not None:
            self._refuse(BadRequest())
        self._end()
        self._on_progress()

    def _end(self) -> None:
        """Serves no further request."""
        self._has_ended = self._outbox.is_last = True
        self._is_held = True  # which is what the loop over requests looks at
        self._plan = self._body = None
        self._unread.clear()

    def _maybe_close(self) -> None:
        """Closes, once the last answer is on its way."""
        if self._outbox.waiting:
            return
        if self._has_peer_ended:
            self._close()
            return
        limits, is_sent = self._state.limits, not self._transport.get_write_buffer_size()
        seconds = limits.linger_seconds if is_sent else limits.write_seconds
        self.deadline = self._state.now + seconds
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Closes when everything is sent, and not later than in the time that a peer has for it."""
        self._end()
        self.deadline = self._state.now + self._state.limits.write_seconds
        self._transport.close()
