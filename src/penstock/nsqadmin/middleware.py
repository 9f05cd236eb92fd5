"""What holds for every request: a line in the log, headers that keep a browser from being misled,
and the doors of `access` and `login`.

Plain ASGI, so that nothing stands between an endpoint and what it streams.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.common.logs import Logger
from penstock.net.http_server import HttpError
from penstock.net.origins import SAFE_METHODS
from penstock.nsqadmin.access import AllowedHosts, is_cross_site
from penstock.nsqadmin.json_responses import json_error
from penstock.nsqadmin.login import Login, to_login

__all__ = ["BodyLimit", "Doors", "RequestLog", "SafeHeaders", "wants_page"]

# More than any body that is asked for: the largest is an option's value, of a megabyte.
BODY_BYTES_MAX = 2 * 1024 * 1024

# Scripts and styles come from us, and from no attribute or tag within a page; nothing is sent or
# shown elsewhere. So a message's body could not do harm even if it were not escaped.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Respond = Callable[[Scope, Receive, Send], Awaitable[None]]


def wants_page(request: Request) -> bool:
    """Whether a person is to read the answer, rather than a program."""
    return "text/html" in request.headers.get("accept", "")


class RequestLog:
    """Logs every request as NSQ does, and answers what has failed by a fault of ours."""

    def __init__(self, app: ASGIApp, log: Logger) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_ns = time.perf_counter_ns()
        status = 0

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting_status)
        except asyncio.CancelledError:
            pass  # nsqadmin stops, and whoever asked has been cut off
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            self._log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await json_error(500, "INTERNAL_ERROR")(scope, receive, noting_status)
        finally:
            milliseconds = (time.perf_counter_ns() - started_ns) / 1e6
            self._log.info("%d %s %s (%s) %.3fms", status, *_asked(scope), milliseconds)


def _asked(scope: Scope) -> tuple[str, str, str]:
    query = scope["query_string"].decode("latin-1")
    host, port = scope["client"] or ("@", "")
    target = scope["path"] + (f"?{query}" if query else "")
    return scope["method"], target, f"{host}:{port}" if port else host


class SafeHeaders:
    """Adds the headers that every answer should have, and forbids that pages are kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class BodyLimit:
    """Lets nobody fill our memory. Raises HttpError 413 where a body is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received_bytes = 0

        async def limited() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > BODY_BYTES_MAX:
                raise HttpError(413, "BODY_TOO_BIG")
            return message

        await self._app(scope, limited, send)


class Doors:
    """Refuses requests under other host names, from other sites and without a login."""

    def __init__(
        self, app: ASGIApp, base: str, login: Login | None, allowed_hosts: AllowedHosts
    ) -> None:
        self._app = app
        self._base = base
        self._allowed_hosts = allowed_hosts
        self._login = login
        self._open = (f"{base}login", f"{base}static/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._opened(request)(scope, receive, send)

    def _opened(self, request: Request) -> Respond:
        if request.scope["path"] == f"{self._base}ping":
            return self._app
        if name := self._allowed_hosts.refused(request):
            remedy = f"start nsqadmin with --allowed-host={name}"
            return json_error(403, f"HOST_NOT_ALLOWED: to use this host name, {remedy}")
        if request.method not in SAFE_METHODS and is_cross_site(request):
            return json_error(403, "FORBIDDEN")
        # The path as it is routed by: that of request.url depends on what Host says.
        if self._login is None or request.scope["path"].startswith(self._open):
            return self._app
        if self._login.admits(request):
            return self._app
        if wants_page(request):
            return to_login(self._base, request)
        return json_error(401, "UNAUTHORIZED")
