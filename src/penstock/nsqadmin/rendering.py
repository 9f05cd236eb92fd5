"""Turns what is to be shown into HTML.

Everything that a template prints is escaped, whoever wrote it. A template names a path of ours
by `link`, and an asset by `asset`, so that all stay below the base path.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from penstock import NSQ_VERSION, __version__
from penstock.common.clock import SECOND_NS
from penstock.nsqadmin.access import Admins
from penstock.nsqadmin.assets import Assets

__all__ = ["Renderer", "ago", "bytes_text", "compact", "is_partial", "rate", "spark_points"]

_TEMPLATES = Path(__file__).parent / "templates"
_NOTICE_COOKIE = "nsqadmin_notice"
_NOTICE_SECONDS = 20
_NOTICE_CHARS_MAX = 500

SPARK_WIDTH, SPARK_HEIGHT = 96, 22


class Renderer:
    """Renders the pages of one nsqadmin."""

    def __init__(self, base: str, assets: Assets, admins: Admins, **shared: Any) -> None:
        """`shared` is what every page may name."""
        self._base = base
        self._admins = admins
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
            "rate": rate,
            "spark": spark_points,
        }
        self._environment.globals |= {
            "asset": lambda name: base + assets.path_of(name),
            "base": base,
            "link": self.link,
            "version": NSQ_VERSION,
            "own_version": __version__,
            **shared,
        }

    def link(self, *segments: str, **args: object) -> str:
        """A path of ours, its segments and arguments escaped."""
        path = self._base + "/".join(quote(segment, safe="") for segment in segments)
        given = {name: value for name, value in args.items() if value not in ("", None)}
        return f"{path}?{urlencode(given)}" if given else path

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """A whole page; or, where a page asks for a part of itself, that part."""
        notice = "" if is_partial(request) else unquote(request.cookies.get(_NOTICE_COOKIE, ""))
        html = self._environment.get_template(template).render(
            **values,
            is_admin=self._admins.includes(request),
            is_partial=is_partial(request),
            notice=notice[:_NOTICE_CHARS_MAX],
            path=request.url.path,
        )
        response = HTMLResponse(html, status, headers={"Vary": "HX-Request"})
        if notice:
            response.delete_cookie(_NOTICE_COOKIE, path=self._base)
        return response

    def redirect(self, to: str, notice: str = "") -> RedirectResponse:
        """Sends the browser on, to a page that will say what was done."""
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
    """Whether a page of ours asks for a part of itself."""
    return request.headers.get("hx-request") == "true"


def commas(count: float) -> str:
    """`1,234,567`."""
    return f"{count:,.0f}"


def compact(count: float) -> str:
    """Five characters at most: `1,234`, `12.3k`, `4.56M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= size:
            scaled = count / min(size, 1e3) if letter == "k" else count / size
            return f"{scaled:.3g}{letter}" if abs(scaled) < 999.5 else f"{scaled:.0f}{letter}"
    return f"{count:,.0f}"


def rate(per_second: float) -> str:
    """A rate, with as many digits as help."""
    if per_second == 0:
        return "0"
    if abs(per_second) < 9.95:
        return f"{per_second:.1f}"
    return compact(per_second)


def bytes_text(count: float | None) -> str:
    """`512 B`, `1.5 MB`."""
    if count is None:
        return "–"  # noqa: RUF001 (a dash for nothing)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def ago(seconds: float) -> str:
    """How long something takes or has taken, in its two largest units at most."""
    seconds = max(int(seconds), 0)
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for letter, size in units:
        count, seconds = divmod(seconds, size)
        if count or (letter == "s" and not parts):
            parts.append(f"{count}{letter}")
    return " ".join(parts[:2])


def clock_text(timestamp_ns: int) -> str:
    """A time of day to the millisecond, in UTC."""
    at = datetime.fromtimestamp(timestamp_ns / SECOND_NS, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def spark_points(values: Sequence[float]) -> str:
    """The points of a small line, scaled to its own highest."""
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    height = SPARK_HEIGHT - 3
    return " ".join(
        f"{number * step:.1f},{1.5 + height * (1 - max(value, 0) / top):.1f}"
        for number, value in enumerate(values)
    )
