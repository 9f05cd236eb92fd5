"""What is answered when a request cannot be: a code to programs, a page to people."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from penstock.admin_api.cluster import UpstreamError
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError
from penstock.nsqadmin.json_responses import json_error
from penstock.nsqadmin.middleware import wants_page
from penstock.nsqadmin.rendering import Renderer, is_partial

__all__ = ["Refusals"]

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
_IN_WORDS = {
    "NOT_FOUND": ("There is no such page", "The address may be mistyped, or out of date."),
    "TOPIC_NOT_FOUND": (
        "There is no such topic",
        "It may have been deleted, or nothing has been published to it yet.",
    ),
    "CHANNEL_NOT_FOUND": (
        "There is no such channel",
        "It may have been deleted, or no consumer has asked for it yet.",
    ),
    "NODE_NOT_FOUND": (
        "There is no such node",
        "It may have stopped, or no nsqlookupd has heard from it for a while.",
    ),
    "FORBIDDEN": (
        "This is not allowed",
        "Only some users may change things here, and only from nsqadmin's own pages.",
    ),
}


class Refusals:
    """Answers in the way the visitor understands."""

    def __init__(self, renderer: Renderer, base: str, log: Logger) -> None:
        self._renderer = renderer
        self._api = (f"{base}api/", f"{base}config/", f"{base}charts")
        self._log = log

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        """Something was asked for that cannot be given."""
        assert isinstance(error, HttpError)
        return self._answer(request, error.status, error.code)

    async def on_http_exception(self, request: Request, error: Exception) -> Response:
        """No route, or not by this method."""
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "INVALID_REQUEST")
        response = self._answer(request, error.status_code, code)
        response.headers.update(error.headers or {})
        return response

    async def on_upstream_failed(self, request: Request, error: Exception) -> Response:
        """Nobody behind us answers."""
        assert isinstance(error, UpstreamError)
        self._log.error("%s", error)
        if self._is_for_people(request):
            reasons = [str(each) for each in error.failures]
            title = f"No {error.what} answers"
            text = "Nothing can be shown until one does. This page tries again by itself."
            return self._page(request, 502, title, text, reasons)
        return json_error(502, f"UPSTREAM_ERROR: {error}")

    def _answer(self, request: Request, status: int, code: str) -> Response:
        if not self._is_for_people(request):
            return json_error(status, code)
        title, text = _IN_WORDS.get(code, ("This did not work", code))
        return self._page(request, status, title, text, [])

    def _is_for_people(self, request: Request) -> bool:
        is_page = wants_page(request) or is_partial(request)
        return is_page and not request.url.path.startswith(self._api)

    def _page(
        self, request: Request, status: int, title: str, text: str, reasons: list[str]
    ) -> Response:
        return self._renderer.page(
            request, "error.html", status=status, title=title, text=text, reasons=reasons
        )
