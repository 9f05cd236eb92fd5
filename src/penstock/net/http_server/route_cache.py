"""What to do with a request, decided once for all requests that begin alike.

A client that keeps its connection sends the same head with every request, and so do its brothers.
So the plan made for a head is kept under the very bytes of it: the next such request costs one
look-up, instead of parsing, routing, reading the arguments and checking limits. That is safe
because a plan depends on the head alone; what does not (the gate, the body) is not in it. Requests
on behalf of another web site are refused here, since that depends on the head alone: see `origins`.
"""

from typing import Final, TypeVar

from penstock.net.http_server.bodies import Body, ChunkedBody, SizedBody
from penstock.net.http_server.errors import BadRequest
from penstock.net.http_server.head import Head, RequestLine, parse_headers
from penstock.net.http_server.origins import OriginPolicy
from penstock.net.http_server.responses import Response, Streaming, error_response
from penstock.net.http_server.routing import Endpoint, Router, fixed_endpoint

__all__ = ["Plan", "Planner"]

# Enough for the bodies of many sizes that many clients send. When full it starts anew: a peer that
# never sends the same head twice costs us this much memory, and others a moment.
REMEMBERED_MAX = 4096
REMEMBERED_BYTES_MAX = 1024

_EXPECTATION_FAILED = Response(417)
_CROSS_SITE = fixed_endpoint(error_response(403, "CROSS_SITE_REQUEST"))
_ANSWERS = (Response, Streaming)


class Plan:
    """How requests with one head are answered."""

    __slots__ = (
        "at_once",
        "body_size",
        "endpoint",
        "handler",
        "head",
        "is_plain",
        "is_whole",
        "keep_alive",
        "logged",
        "params",
    )

    def __init__(
        self, head: Head, endpoint: Endpoint, params: dict[str, str], *, gated: bool = False
    ) -> None:
        self.head: Final = head
        self.endpoint: Final = endpoint
        self.handler: Final = endpoint.handler
        self.params: Final = params
        self.logged: Final = endpoint.logged
        self.keep_alive: Final = head.keep_alive
        self.body_size: Final = head.content_length
        # An answer that leaves the body unread, and with it the connection unusable.
        self.at_once: Final = _at_once(head, endpoint)
        # Whether nothing has to happen between the head and the end of the body.
        self.is_whole: Final = not (
            gated or head.chunked or head.expects_continue or self.at_once is not None
        )
        # Whether the answer has no special form.
        self.is_plain: Final = head.line.http_11 and head.line.method != "HEAD"

    def answered_by(self, response: Response) -> "Plan":
        """The plan for a request that is answered before it reaches its route."""
        return Plan(self.head, fixed_endpoint(response), {})

    def in_envelope(self, result: object) -> Response | Streaming:
        """The answer that a result of the endpoint becomes."""
        if isinstance(result, _ANSWERS):
            return result
        return self.endpoint.envelope.respond(result)

    def new_body(self) -> Body:
        """What reads the body of one request."""
        if self.head.chunked:
            return ChunkedBody(self.endpoint.body_bytes_max)
        return SizedBody(self.body_size)


def _at_once(head: Head, endpoint: Endpoint) -> Response | None:
    if head.unknown_expectation:
        return _EXPECTATION_FAILED
    if head.content_length > endpoint.body_bytes_max:
        return endpoint.too_big
    if head.expects_continue and not endpoint.is_route:
        return endpoint.too_big  # No use asking for a body that nobody reads.
    return None


class Planner:
    """Makes the plans of one server, and remembers them."""

    __slots__ = ("_gated", "_head_bytes_max", "_lines", "_origins", "_router", "_seen", "plans")

    def __init__(
        self, router: Router, *, head_bytes_max: int, gated: bool, origins: OriginPolicy
    ) -> None:
        self._router: Final = router
        self._head_bytes_max: Final = head_bytes_max
        self._gated: Final = gated
        self._origins: Final = origins
        self.plans: Final[dict[bytes, Plan]] = {}
        self._seen: Final[set[int]] = set()
        # A client may add a header that is never the same, to follow its requests; its request line
        # is still one of few.
        self._lines: Final[dict[bytes, _RoutedLine]] = {}

    def plan(self, raw: bytes) -> Plan:
        """The plan for requests with this head. Raises BadRequest."""
        if len(raw) > self._head_bytes_max:
            raise BadRequest(431)
        line_end = raw.find(b"\n") + 1
        raw_line = raw[:line_end]
        line, endpoint, params = self._lines.get(raw_line) or self._route(raw_line)
        head = Head(line, parse_headers(raw[line_end:]))
        if self._origins.refuses(line.method, head.headers):
            endpoint, params = _CROSS_SITE, {}
        plan = Plan(head, endpoint, params, gated=self._gated)
        if self._comes_again(raw):
            _remember(self.plans, raw, plan)
        return plan

    def _comes_again(self, raw: bytes) -> bool:
        """Whether `raw` was here before: to remember what never comes again would only cost."""
        fingerprint = hash(raw)
        if fingerprint in self._seen:
            return True
        if len(self._seen) >= REMEMBERED_MAX:
            self._seen.clear()
        self._seen.add(fingerprint)
        return False

    def _route(self, raw_line: bytes) -> "_RoutedLine":
        line = RequestLine(raw_line)
        routed = (line, *self._router.find(line))
        _remember(self._lines, raw_line, routed)
        return routed


_RoutedLine = tuple[RequestLine, Endpoint, dict[str, str]]

T = TypeVar("T")


def _remember(table: dict[bytes, T], raw: bytes, value: T) -> None:
    if len(raw) <= REMEMBERED_BYTES_MAX:
        if len(table) >= REMEMBERED_MAX:
            table.clear()
        table[raw] = value
