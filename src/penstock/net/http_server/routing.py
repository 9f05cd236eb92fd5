"""From a method and a path to what answers them, as the router of the reference finds it.

Every request finds an `Endpoint`. Where no route matches it is one with a fixed answer, found in
this order:

1. a redirect, if the method has a route at the same path with or without its last slash, or at the
   path without `//`, `.` and `..`, in any case of letters: 301 to a GET, 307 to others;
2. to OPTIONS, 200 with the methods of that very path in `Allow`;
3. to a method that the path does not have, HEAD like any other, 405 with the same `Allow`;
4. 404.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from penstock.net.http_server.errors import HttpError
from penstock.net.http_server.head import RequestLine
from penstock.net.http_server.requests import Request
from penstock.net.http_server.responses import V1, Envelope, Response, error_response

__all__ = ["Endpoint", "Handler", "Route", "Router", "fixed_endpoint"]

# What Go's server reads of a body that its handler left unread, for the sake of the connection.
DISCARDED_BODY_BYTES_MAX = 256 * 1024

# Returns a result for its envelope, a Response or Streaming as it is to be, or an awaitable of any.
# A future stands for something that has been done and waits to be answered: requests that follow on
# the connection are served meanwhile. A coroutine is yet to do something: they wait for it.
Handler = Callable[[Request], object]

# As Go's server escapes text in HTML.
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What answers a request, and how long a body it reads first."""

    handler: Handler
    envelope: Envelope = V1
    body_bytes_max: int = DISCARDED_BODY_BYTES_MAX
    too_big: Response  # the answer to a longer body, which is not read
    logged: bool = True
    is_route: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """One row of an API's table. A segment `:name` of the path is a parameter."""

    method: str
    path: str
    handler: Handler
    envelope: Envelope = field(default=V1, kw_only=True)
    body_bytes_max: int = field(default=DISCARDED_BODY_BYTES_MAX, kw_only=True)
    too_big: str = field(default="BODY_TOO_BIG", kw_only=True)
    logged: bool = field(default=True, kw_only=True)

    def endpoint(self) -> Endpoint:
        return Endpoint(
            handler=self.handler,
            envelope=self.envelope,
            body_bytes_max=self.body_bytes_max,
            too_big=self.envelope.refuse(HttpError(413, self.too_big)),
            logged=self.logged,
        )


def fixed_endpoint(response: Response) -> Endpoint:
    """Answers every request with `response`, whether its body can be read or not."""
    return Endpoint(handler=lambda _: response, too_big=response, is_route=False)


Found = tuple[Endpoint, dict[str, str]]

_NOT_FOUND = fixed_endpoint(error_response(404, "NOT_FOUND"))


class Router:
    """The routes of one API."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_method: dict[str, _Paths] = {}
        for route in routes:
            self._by_method.setdefault(route.method, _Paths()).add(route)

    def find(self, line: RequestLine) -> Found:
        """What answers requests with this line, and the parameters in their path."""
        if line.method == "OPTIONS" and line.path == "*":
            return fixed_endpoint(Response(200)), {}
        paths = self._by_method.get(line.method)
        if paths is not None:
            if found := paths.find(line.path):
                return found
            if (path := paths.find_similar(line.path)) is not None:
                return fixed_endpoint(_redirect(line, path)), {}
        return self._unrouted(line), {}

    def _unrouted(self, line: RequestLine) -> Endpoint:
        allow = self._allow(line)
        if not allow:
            return _NOT_FOUND
        if line.method == "OPTIONS":
            return fixed_endpoint(Response(200, headers=(("Allow", allow),)))
        response = error_response(405, "METHOD_NOT_ALLOWED", extra_headers=(("Allow", allow),))
        return fixed_endpoint(response)

    def _allow(self, line: RequestLine) -> str:
        methods = {
            method
            for method, paths in self._by_method.items()
            if line.path == "*" or paths.find(line.path)
        }
        return ", ".join(sorted(methods | {"OPTIONS"})) if methods else ""


class _Paths:
    """The routes of one method."""

    def __init__(self) -> None:
        self._exact: dict[str, Endpoint] = {}
        self._patterns: list[tuple[list[str], Endpoint]] = []

    def add(self, route: Route) -> None:
        if ":" in route.path:
            self._patterns.append((route.path.split("/"), route.endpoint()))
        else:
            self._exact[route.path] = route.endpoint()

    def find(self, path: str) -> Found | None:
        if endpoint := self._exact.get(path):
            return endpoint, {}
        segments = path.split("/")
        for pattern, endpoint in self._patterns:
            params = _match(pattern, segments)
            if params is not None:
                return endpoint, params
        return None

    def find_similar(self, path: str) -> str | None:
        """The path of a route that was probably meant."""
        if path == "/":
            return None
        toggled = _toggle_slash(path)
        if self.find(toggled):
            return toggled
        clean = _clean(path)
        return self._in_any_case(clean) or self._in_any_case(_toggle_slash(clean))

    def _in_any_case(self, path: str) -> str | None:
        for known in self._exact:
            if known.casefold() == path.casefold():
                return known
        segments = path.split("/")
        for pattern, _ in self._patterns:
            folded = [
                given if known.startswith(":") or known.casefold() != given.casefold() else known
                for known, given in zip(pattern, segments, strict=False)
            ]
            if len(pattern) == len(segments) and _match(pattern, folded) is not None:
                return "/".join(folded)
        return None


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    """The parameters, if `segments` are those of a path that `pattern` stands for."""
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


def _clean(path: str) -> str:
    """`path` without empty, `.` and `..` segments; a slash at its end stays."""
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
    # The characters that Go leaves bare in a path; whatever else a peer put there is escaped.
    location = quote(path.encode("utf-8", "surrogateescape"), safe="/$&+,:;=@~")
    if line.query:
        location += "?" + quote(line.query, safe="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    if line.method != "GET":
        return Response(307, headers=(("Location", location),))
    link = f'<a href="{location.translate(_HTML_ESCAPES)}">Moved Permanently</a>.\n\n'
    html = (("Content-Type", "text/html; charset=utf-8"), ("Location", location))
    return Response(301, link.encode(), headers=html)
