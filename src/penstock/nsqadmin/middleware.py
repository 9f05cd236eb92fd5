"""ASGI middleware for every request: request log, security headers, body size limit.

Access control is in `access.AuthMiddleware`.
"""

import asyncio
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.common.logs import Logger
from penstock.net.http_server import HttpError
from penstock.nsqadmin.responses import json_error

__all__ = ["BodyLimit", "RequestLog", "SafeHeaders"]

# The largest valid body is the value of an option, one megabyte.
BODY_BYTES_MAX = 2 * 1024 * 1024

# Allows only nsqadmin's own script and style files, none inside a page, and no requests to other
# hosts. So a message body could not run a script even if a template did not escape it.
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


class RequestLog:
    """Log every request in NSQ's format; turn an unexpected exception into a 500 response."""

    def __init__(self, app: ASGIApp, log: Logger) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_ns = time.perf_counter_ns()
        status = 0

        async def send_and_record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_record_status)
        except asyncio.CancelledError:
            pass  # nsqadmin is stopping and has closed the connection
        except Exception:  # noqa: BLE001 (it is logged, with traceback)
            self._log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await json_error(500, "INTERNAL_ERROR")(scope, receive, send_and_record_status)
        finally:
            milliseconds = (time.perf_counter_ns() - started_ns) / 1e6
            self._log.info("%d %s %s (%s) %.3fms", status, *_request_line(scope), milliseconds)


def _request_line(scope: Scope) -> tuple[str, str, str]:
    query = scope["query_string"].decode("latin-1")
    host, port = scope["client"] or ("@", "")
    target = scope["path"] + (f"?{query}" if query else "")
    return scope["method"], target, f"{host}:{port}" if port else host


class SafeHeaders:
    """Add security headers to every response, and forbid caching unless the endpoint allows it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Limit the size of request bodies. Reading beyond the limit raises HttpError 413."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received_bytes = 0

        async def receive_limited() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > BODY_BYTES_MAX:
                raise HttpError(413, "BODY_TOO_BIG")
            return message

        await self._app(scope, receive_limited, send)
