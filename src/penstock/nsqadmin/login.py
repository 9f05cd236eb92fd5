"""Login with a token, if --auth-token-file is set.

Each line of the file is a token; blank lines and lines that start with `#` are skipped. A browser
gets a session cookie from the login page, valid for a week. A script sends the token as
`Authorization: Bearer <token>`. The cookie holds an expiry time and an HMAC of it, keyed with the
token; removing the token from the file ends its sessions.
"""

import hashlib
import hmac
import re
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import ConfigError
from penstock.nsqadmin.responses import Renderer

__all__ = ["Login", "LoginPages", "login_redirect", "safe_next_path"]

COOKIE = "nsqadmin_session"
SESSION_SECONDS = 7 * 24 * 3600

# Shorter tokens could be guessed; a larger file is probably not a token file.
TOKEN_CHARS_MIN = 16
FILE_BYTES_MAX = 1 << 20

_BEARER = re.compile(r"(?i:bearer) +(\S+)")


class Login:
    """The valid tokens and the sessions made with them."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises ConfigError if the file has no valid tokens."""
        self._path = path
        self._clock = clock
        self._tokens = _load(path)

    def reload(self) -> None:
        """Read the file again. If it is invalid, raises ConfigError and keeps the old tokens."""
        self._tokens = _load(self._path)

    def is_logged_in(self, request: Request) -> bool:
        """Whether the request carries a valid token or session cookie."""
        given = _BEARER.fullmatch(request.headers.get("authorization", ""))
        if given is not None:
            return self.is_valid_token(given[1])
        return self._is_valid_session(request.cookies.get(COOKIE, ""))

    def is_valid_token(self, token: str) -> bool:
        """Compare with every token, so that the duration does not reveal which one matches."""
        given = token.encode()
        return sum(hmac.compare_digest(known, given) for known in self._tokens) > 0

    def set_session_cookie(
        self, response: Response, token: str, path: str, *, secure: bool
    ) -> None:
        """Add a session cookie to the response."""
        until = str(self._now_seconds() + SESSION_SECONDS)
        response.set_cookie(
            COOKIE,
            f"{until}.{_signature(token.encode(), until)}",
            max_age=SESSION_SECONDS,
            path=path,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def _is_valid_session(self, cookie: str) -> bool:
        until, _, signature = cookie.partition(".")
        if not until.isascii() or not until.isdecimal() or int(until) < self._now_seconds():
            return False
        given = signature.encode()
        signatures = [_signature(token, until).encode() for token in self._tokens]
        return sum(hmac.compare_digest(each, given) for each in signatures) > 0

    def _now_seconds(self) -> int:
        return self._clock.wall_ns() // SECOND_NS


class LoginPages:
    """The login page and the log-out endpoint."""

    def __init__(self, login: Login, base: str, renderer: Renderer) -> None:
        self._login = login
        self._base = base
        self._renderer = renderer

    def routes(self) -> list[Route]:
        return [
            Route("/login", self._show, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        next_path = safe_next_path(request.query_params.get("next", ""), self._base)
        return self._renderer.page(request, "login.html", next_path=next_path, problem="")

    async def _log_in(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=5)
        token, asked = str(form.get("token", "")).strip(), str(form.get("next", ""))
        next_path = safe_next_path(asked, self._base)
        if not self._login.is_valid_token(token):
            problem = "Unknown token."
            return self._renderer.page(
                request, "login.html", status=401, next_path=next_path, problem=problem
            )
        response = self._renderer.redirect(next_path)
        self._login.set_session_cookie(response, token, self._base, secure=is_secure(request))
        return response

    async def _log_out(self, request: Request) -> Response:
        response = self._renderer.redirect(self._renderer.link("login"))
        response.delete_cookie(COOKIE, path=self._base)
        return response


def is_secure(request: Request) -> bool:
    """Whether the browser used HTTPS, to nsqadmin or to a reverse proxy."""
    said = (request.headers.get("x-forwarded-proto"), request.headers.get("x-scheme"))
    return request.url.scheme == "https" or "https" in said


def safe_next_path(target: str, base: str) -> str:
    """Where to redirect after the login: `target` if it is a page of nsqadmin, else `base`."""
    parts = urlsplit(target)
    is_ours = not parts.scheme and not parts.netloc and target.startswith(base)
    return target if is_ours and "\\" not in target and not target.startswith("//") else base


def login_redirect(base: str, request: Request) -> RedirectResponse:
    """Redirect to the login page, which redirects back to the requested page."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{base}login?next={quote(asked, safe='/')}", 303)


def _signature(token: bytes, until: str) -> str:
    return hmac.new(token, f"nsqadmin session until {until}".encode(), hashlib.sha256).hexdigest()


def _load(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return _parse(file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise ConfigError(f"--auth-token-file: {error}") from error
    except ValueError as error:
        raise ConfigError(f"--auth-token-file: {path}: {error}") from error


def _parse(content: bytes) -> list[bytes]:
    """Raises ValueError. Its message contains no token, since it is logged."""
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"longer than {FILE_BYTES_MAX} bytes")
    lines = [line.strip() for line in content.splitlines()]
    tokens = [line for line in lines if line and not line.startswith(b"#")]
    if not tokens:
        raise ValueError("the file contains no token")
    if any(len(token) < TOKEN_CHARS_MIN or len(token.split()) > 1 for token in tokens):
        raise ValueError(f"a token must have at least {TOKEN_CHARS_MIN} characters and no spaces")
    return tokens
