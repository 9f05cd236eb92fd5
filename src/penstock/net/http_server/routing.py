"""From a request's head to its endpoint: requests, routes, the router, and a cache of its results.

The router finds an `Endpoint` for every request, as NSQ's router does. If no route
matches, the endpoint has a fixed response, the first of these that applies:

1. a redirect, if the method has a route at the same path with or without its last slash, or at the
   path without `//`, `.` and `..`, ignoring the case of letters: 301 for GET, 307 for others;
2. for OPTIONS, 200 with the methods of the path in `Allow`;
3. for a method that the path does not have (HEAD included), 405 with the same `Allow`;
4. 404.

A client that keeps its connection sends the same head with every request. `RouteCache` therefore
maps the raw bytes of a head to its `RoutedHead`: a repeated head costs one dictionary lookup, not
parsing, routing, decoding of arguments and checks of limits. A RoutedHead depends on the head
alone; middleware and bodies are not part of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct

from penstock.net.http_server.parsing import (
    BadRequestError,
    Body,
    ChunkedBody,
    RequestHead,
    RequestLine,
    SizedBody,
    parse_headers,
)
from penstock.net.http_server.responses import (
    V1,
    HttpError,
    Response,
    ResponseFormat,
    StreamingResponse,
    error_response,
)
from penstock.net.origins import OriginPolicy

__all__ = [
    "Endpoint",
    "Handler",
    "HttpClientInfo",
    "Request",
    "Route",
    "RouteCache",
    "RoutedHead",
    "Router",
    "fixed_endpoint",
]

# Go's server reads this much of a body that its handler ignores, to keep the connection usable.
DISCARDED_BODY_BYTES_MAX = 256 * 1024

# Room for the heads of many clients with bodies of many sizes. A full table is cleared, so that a
# client that never repeats a head costs a bounded amount of memory.
CACHED_HEADS_MAX = 4096
CACHED_HEAD_BYTES_MAX = 1024

# As Go's server escapes text in HTML.
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


class HttpClientInfo(Protocol):
    """The client of a request, as endpoints see it."""

    @property
    def address(self) -> str:
        """`host:port`, or `@` on a unix socket."""

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""


class Request(Struct, frozen=True, eq=False):
    """One request with its whole body."""

    head: RequestHead
    params: dict[str, str]  # of the path: `/config/:opt` has `opt`
    body: bytes
    client: HttpClientInfo

    @property
    def method(self) -> str:
        """The method as sent; methods are case-sensitive."""
        return self.head.line.method

    @property
    def path(self) -> str:
        """The decoded path without the query."""
        return self.head.line.path

    @property
    def args(self) -> dict[str, str]:
        """Arguments of the query string; of a repeated one, the first. Read-only.

        Raises HttpError 400 INVALID_REQUEST if the query cannot be decoded.
        """
        args = self.head.line.args
        if args is None:
            raise HttpError(400, "INVALID_REQUEST")
        return args

    def header(self, name: str) -> str | None:
        """Value of a header by its case-insensitive name; all values of a repeated header, joined
        by commas."""
        value = self.head.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")


# Returns a result for the route's format, a Response or StreamingResponse to send unchanged, or an
# awaitable of one of these. While a future or DeferredResponse is pending, later requests of the
# connection are handled. While a coroutine runs, they wait.
Handler = Callable[[Request], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A handler and the limit of the bodies that it accepts."""

    handler: Handler
    response_format: ResponseFormat = V1
    body_bytes_max: int = DISCARDED_BODY_BYTES_MAX
    too_large: Response  # response to a longer body, which is not read
    is_logged: bool = True
    is_route: bool = True  # False for a fixed response


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint of an API. A segment `:name` of the path is a parameter."""

    method: str
    path: str
    handler: Handler
    response_format: ResponseFormat = field(default=V1, kw_only=True)
    body_bytes_max: int = field(default=DISCARDED_BODY_BYTES_MAX, kw_only=True)
    too_large_code: str = field(default="BODY_TOO_BIG", kw_only=True)
    is_logged: bool = field(default=True, kw_only=True)

    def endpoint(self) -> Endpoint:
        return Endpoint(
            handler=self.handler,
            response_format=self.response_format,
            body_bytes_max=self.body_bytes_max,
            too_large=self.response_format.failure(HttpError(413, self.too_large_code)),
            is_logged=self.is_logged,
        )


def fixed_endpoint(response: Response) -> Endpoint:
    """An endpoint that always responds with `response`, also if the body is too long."""
    return Endpoint(handler=lambda _: response, too_large=response, is_route=False)


_Match = tuple[Endpoint, dict[str, str]]

_NOT_FOUND = fixed_endpoint(error_response(404, "NOT_FOUND"))


class Router:
    """The routes of one API."""

    def __init__(self, routes: Iterable[Route], *, not_found: Response | None = None) -> None:
        """`not_found` is the response to requests for other paths; 404 NOT_FOUND by default."""
        self._not_found = _NOT_FOUND if not_found is None else fixed_endpoint(not_found)
        self._by_method: dict[str, _MethodRoutes] = {}
        for route in routes:
            self._by_method.setdefault(route.method, _MethodRoutes()).add(route)

    def find(self, line: RequestLine) -> _Match:
        """The endpoint for a request line, and the parameters of the path."""
        if line.method == "OPTIONS" and line.path == "*":
            return fixed_endpoint(Response(200)), {}
        paths = self._by_method.get(line.method)
        if paths is not None:
            if match := paths.find(line.path):
                return match
            if (path := paths.find_similar(line.path)) is not None:
                return fixed_endpoint(_redirect(line, path)), {}
        return self._fallback_endpoint(line), {}

    def _fallback_endpoint(self, line: RequestLine) -> Endpoint:
        allow = self._allowed_methods(line)
        if not allow:
            return self._not_found
        if line.method == "OPTIONS":
            return fixed_endpoint(Response(200, headers=(("Allow", allow),)))
        response = error_response(405, "METHOD_NOT_ALLOWED", extra_headers=(("Allow", allow),))
        return fixed_endpoint(response)

    def _allowed_methods(self, line: RequestLine) -> str:
        methods = {
            method
            for method, paths in self._by_method.items()
            if line.path == "*" or paths.find(line.path)
        }
        return ", ".join(sorted(methods | {"OPTIONS"})) if methods else ""


class _MethodRoutes:
    """The routes of one method."""

    def __init__(self) -> None:
        self._exact: dict[str, Endpoint] = {}
        self._patterns: list[tuple[list[str], Endpoint]] = []

    def add(self, route: Route) -> None:
        if ":" in route.path:
            self._patterns.append((route.path.split("/"), route.endpoint()))
        else:
            self._exact[route.path] = route.endpoint()

    def find(self, path: str) -> _Match | None:
        if endpoint := self._exact.get(path):
            return endpoint, {}
        segments = path.split("/")
        for pattern, endpoint in self._patterns:
            params = _match_segments(pattern, segments)
            if params is not None:
                return endpoint, params
        return None

    def find_similar(self, path: str) -> str | None:
        """The path of the route to redirect to, or None."""
        if path == "/":
            return None
        toggled = _toggle_slash(path)
        if self.find(toggled):
            return toggled
        clean = _clean_path(path)
        return self._find_ignoring_case(clean) or self._find_ignoring_case(_toggle_slash(clean))

    def _find_ignoring_case(self, path: str) -> str | None:
        for known in self._exact:
            if known.casefold() == path.casefold():
                return known
        segments = path.split("/")
        for pattern, _ in self._patterns:
            folded = [
                given if known.startswith(":") or known.casefold() != given.casefold() else known
                for known, given in zip(pattern, segments, strict=False)
            ]
            if len(pattern) == len(segments) and _match_segments(pattern, folded) is not None:
                return "/".join(folded)
        return None


def _match_segments(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    """The parameters if `segments` match `pattern`, otherwise None."""
    if len(pattern) != len(segments):
        return None
    params = {}
    for known, given in zip(pattern, segments, strict=True):
        if known.startswith(":") and given:
            params[known[1:]] = given
        elif known != given:
            return None
    return params


def _toggle_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"


def _clean_path(path: str) -> str:
    """`path` without empty, `.` and `..` segments; a slash at its end is kept."""
    clean: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del clean[-1:]
        elif segment not in ("", "."):
            clean.append(segment)
    ends_in_slash = segments[-1] in ("", ".") and clean
    return "/" + "/".join(clean) + ("/" if ends_in_slash else "")


def _redirect(line: RequestLine, path: str) -> Response:
    # The characters that Go does not escape in a path.
    location = quote(path.encode("utf-8", "surrogateescape"), safe="/$&+,:;=@~")
    if line.query:
        location += "?" + quote(line.query, safe="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    if line.method != "GET":
        return Response(307, headers=(("Location", location),))
    link = f'<a href="{location.translate(_HTML_ESCAPES)}">Moved Permanently</a>.\n\n'
    html = (("Content-Type", "text/html; charset=utf-8"), ("Location", location))
    return Response(301, link.encode(), headers=html)


_CROSS_SITE = fixed_endpoint(error_response(403, "CROSS_SITE_REQUEST"))
_EXPECTATION_FAILED = Response(417)
_RESPONSES = (Response, StreamingResponse)


class RoutedHead:
    """A parsed head with its endpoint: all that is known of a request before its body."""

    __slots__ = (
        "body_size",
        "early_response",
        "endpoint",
        "handler",
        "has_plain_body",
        "has_plain_response",
        "head",
        "is_keep_alive",
        "is_logged",
        "params",
    )

    def __init__(
        self,
        head: RequestHead,
        endpoint: Endpoint,
        params: dict[str, str],
        *,
        has_middleware: bool = False,
    ) -> None:
        self.head: Final = head
        self.endpoint: Final = endpoint
        self.handler: Final = endpoint.handler
        self.params: Final = params
        self.is_logged: Final = endpoint.is_logged
        self.is_keep_alive: Final = head.is_keep_alive
        self.body_size: Final = head.content_length
        # A response that is sent without reading the body; the connection is closed after it.
        self.early_response: Final = _early_response(head, endpoint)
        # Whether the body can be cut out of the data that was read, without any other step.
        self.has_plain_body: Final = not (
            has_middleware
            or head.is_chunked
            or head.expects_continue
            or self.early_response is not None
        )
        # Whether the cached bytes of a Response can be sent.
        self.has_plain_response: Final = head.line.is_http_11 and head.line.method != "HEAD"

    def with_response(self, response: Response) -> "RoutedHead":
        """The same head, routed to a fixed response."""
        return RoutedHead(self.head, fixed_endpoint(response), {})

    def to_response(self, result: object) -> Response | StreamingResponse:
        """Makes a response of the handler's result; returns it unchanged if it is a response."""
        if isinstance(result, _RESPONSES):
            return result
        return self.endpoint.response_format.success(result)

    def new_body(self) -> Body:
        """A parser for the body of one request."""
        if self.head.is_chunked:
            return ChunkedBody(self.endpoint.body_bytes_max)
        return SizedBody(self.body_size)


def _early_response(head: RequestHead, endpoint: Endpoint) -> Response | None:
    if head.has_unknown_expectation:
        return _EXPECTATION_FAILED
    if head.content_length > endpoint.body_bytes_max:
        return endpoint.too_large
    if head.expects_continue and not endpoint.is_route:
        return endpoint.too_large  # Do not request a body that no handler reads.
    return None


class RouteCache:
    """Parses and routes heads, and caches the heads that are repeated."""

    __slots__ = (
        "_has_middleware",
        "_head_bytes_max",
        "_lines",
        "_origins",
        "_router",
        "_seen",
        "heads",
    )

    def __init__(
        self, router: Router, *, head_bytes_max: int, has_middleware: bool, origins: OriginPolicy
    ) -> None:
        self._router: Final = router
        self._head_bytes_max: Final = head_bytes_max
        self._has_middleware: Final = has_middleware
        self._origins: Final = origins
        self.heads: Final[dict[bytes, RoutedHead]] = {}
        self._seen: Final[set[int]] = set()
        # A client may add a unique header, for tracing; its request lines are still few.
        self._lines: Final[dict[bytes, _RoutedLine]] = {}

    def route(self, raw_head: bytes) -> RoutedHead:
        """Parses and routes a head that is not in `heads`. Raises BadRequestError."""
        if len(raw_head) > self._head_bytes_max:
            raise BadRequestError(431)
        line_end = raw_head.find(b"\n") + 1
        raw_line = raw_head[:line_end]
        line, endpoint, params = self._lines.get(raw_line) or self._route_line(raw_line)
        head = RequestHead(line, parse_headers(raw_head[line_end:]))
        if self._origins.refuses(line.method, head.headers):
            endpoint, params = _CROSS_SITE, {}
        routed = RoutedHead(head, endpoint, params, has_middleware=self._has_middleware)
        if self._is_repeated(raw_head):
            _remember(self.heads, raw_head, routed)
        return routed

    def _is_repeated(self, raw_head: bytes) -> bool:
        """Whether the head was seen before. Heads are cached from the second time on, because
        unique heads would only fill the cache."""
        fingerprint = hash(raw_head)
        if fingerprint in self._seen:
            return True
        if len(self._seen) >= CACHED_HEADS_MAX:
            self._seen.clear()
        self._seen.add(fingerprint)
        return False

    def _route_line(self, raw_line: bytes) -> "_RoutedLine":
        line = RequestLine(raw_line)
        routed = (line, *self._router.find(line))
        _remember(self._lines, raw_line, routed)
        return routed


_RoutedLine = tuple[RequestLine, Endpoint, dict[str, str]]

T = TypeVar("T")


def _remember(table: dict[bytes, T], raw: bytes, value: T) -> None:
    if len(raw) <= CACHED_HEAD_BYTES_MAX:
        if len(table) >= CACHED_HEADS_MAX:
            table.clear()
        table[raw] = value
