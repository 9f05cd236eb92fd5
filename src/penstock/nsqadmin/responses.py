"""HTTP responses: HTML pages from templates, and NSQ's JSON.

Templates escape everything they print. They build URLs with `link` and `asset`, which add the base
path.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock import NSQ_VERSION, __version__
from penstock.net.http_server import to_json
from penstock.nsqadmin.formatting import (
    ago,
    bytes_text,
    clock_text,
    commas,
    compact,
    rate,
    sparkline_points,
)
from penstock.tools.display import format_count

__all__ = ["Renderer", "is_partial", "json_error", "json_reply", "text_reply", "wants_page"]

_TEMPLATES = Path(__file__).parent / "templates"
_NOTICE_COOKIE = "nsqadmin_notice"
_NOTICE_SECONDS = 20
_NOTICE_CHARS_MAX = 500


_V1 = {"X-NSQ-Content-Type": "nsq; version=1.0"}
_JSON_TYPE = "application/json; charset=utf-8"


def json_reply(value: object, status: int = 200) -> Response:
    """A V1 response: JSON, except that a string is sent as plain text."""
    if isinstance(value, str):
        return Response(value, status, headers=_V1, media_type="text/plain; charset=utf-8")
    return Response(to_json(value), status, headers={**_V1, "Content-Type": _JSON_TYPE})


def json_error(status: int, code: str) -> Response:
    """A V1 error response."""
    return json_reply({"message": code}, status)


def text_reply(text: str, status: int = 200) -> Response:
    """A plain text response, such as that of /ping."""
    return Response(text, status, media_type="text/plain; charset=utf-8")


class Renderer:
    """Renders pages from templates."""

    def __init__(
        self,
        base: str,
        *,
        asset_path: Callable[[str], str],
        is_admin: Callable[[Request], bool],
        **variables: Any,
    ) -> None:
        """`asset_path` maps a static file to its path below `base`; `variables` are available in
        every template."""
        self._base = base
        self._is_admin = is_admin
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "ago": ago,
            "bytes": bytes_text,
            "clock": clock_text,
            "commas": commas,
            "compact": compact,
            "count": format_count,
            "rate": rate,
            "sparkline": sparkline_points,
        }
        self._environment.globals |= {
            "asset": lambda name: base + asset_path(name),
            "base": base,
            "link": self.link,
            "version": NSQ_VERSION,
            "own_version": __version__,
            **variables,
        }

    def link(self, *segments: str, **args: object) -> str:
        """URL path of a page, with segments and query arguments escaped; empty ones are omitted."""
        path = self._base + "/".join(quote(segment, safe="") for segment in segments)
        given = {name: value for name, value in args.items() if value not in ("", None)}
        return f"{path}?{urlencode(given)}" if given else path

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """A whole page, or only its refreshable part if htmx requests it."""
        notice = "" if is_partial(request) else unquote(request.cookies.get(_NOTICE_COOKIE, ""))
        html = self._environment.get_template(template).render(
            **values,
            is_admin=self._is_admin(request),
            is_partial=is_partial(request),
            notice=notice[:_NOTICE_CHARS_MAX],
            path=request.url.path,
        )
        response = HTMLResponse(html, status, headers={"Vary": "HX-Request"})
        if notice:
            response.delete_cookie(_NOTICE_COOKIE, path=self._base)
        return response

    def redirect(self, to: str, notice: str = "") -> RedirectResponse:
        """Redirect to a page that shows the notice once."""
        response = RedirectResponse(to, 303)
        if notice:
            response.set_cookie(
                _NOTICE_COOKIE,
                quote(notice[:_NOTICE_CHARS_MAX]),
                max_age=_NOTICE_SECONDS,
                path=self._base,
                httponly=True,
                samesite="strict",
            )
        return response


def is_partial(request: Request) -> bool:
    """Whether htmx requests a part of a page."""
    return request.headers.get("hx-request") == "true"


def wants_page(request: Request) -> bool:
    """Whether the client prefers HTML: it is a browser, not a script."""
    return "text/html" in request.headers.get("accept", "")
