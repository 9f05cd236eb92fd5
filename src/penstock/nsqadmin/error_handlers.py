"""Error responses: an HTML page for browsers, NSQ's JSON error for scripts."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.admin_api.cluster import UpstreamError
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError
from penstock.nsqadmin.responses import Renderer, is_partial, json_error, wants_page

__all__ = ["ErrorHandlers"]

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
_ERROR_TEXTS = {
    "NOT_FOUND": ("Page not found", "Check the address."),
    "TOPIC_NOT_FOUND": (
        "Topic not found",
        "It was deleted, or no message has been published to it yet.",
    ),
    "CHANNEL_NOT_FOUND": (
        "Channel not found",
        "It was deleted, or no consumer has subscribed to it yet.",
    ),
    "NODE_NOT_FOUND": (
        "Node not found",
        "It was stopped, or it is not registered with nsqlookupd.",
    ),
    "FORBIDDEN": (
        "Permission denied",
        "Changes require an admin user, and must come from nsqadmin's own pages.",
    ),
}


class ErrorHandlers:
    """Exception handlers for the Starlette application."""

    def __init__(self, renderer: Renderer, base: str, log: Logger) -> None:
        self._renderer = renderer
        self._api = (f"{base}api/", f"{base}config/", f"{base}charts")
        self._log = log

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        """An endpoint refused the request."""
        assert isinstance(error, HttpError)
        return self._respond(request, error.status, error.code)

    async def on_http_exception(self, request: Request, error: Exception) -> Response:
        """No route matches the path, or the route does not support the method."""
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "INVALID_REQUEST")
        response = self._respond(request, error.status_code, code)
        response.headers.update(error.headers or {})
        return response

    async def on_upstream_failed(self, request: Request, error: Exception) -> Response:
        """No nsqd or nsqlookupd responded."""
        assert isinstance(error, UpstreamError)
        self._log.error("%s", error)
        if self._wants_html(request):
            reasons = [str(each) for each in error.failures]
            title = f"No {error.what} is reachable"
            text = "This page retries automatically."
            return self._page(request, 502, title, text, reasons)
        return json_error(502, f"UPSTREAM_ERROR: {error}")

    def _respond(self, request: Request, status: int, code: str) -> Response:
        if not self._wants_html(request):
            return json_error(status, code)
        title, text = _ERROR_TEXTS.get(code, ("Request failed", code))
        return self._page(request, status, title, text, [])

    def _wants_html(self, request: Request) -> bool:
        is_page = wants_page(request) or is_partial(request)
        return is_page and not request.url.path.startswith(self._api)

    def _page(
        self, request: Request, status: int, title: str, text: str, reasons: list[str]
    ) -> Response:
        return self._renderer.page(
            request, "error.html", status=status, title=title, text=text, reasons=reasons
        )
