"""Logging in with a token, where --auth-token-file asks for it.

A line of the file is a token; blank lines and those that begin with `#` are skipped. Whoever has
one gives it on the login page, and gets a cookie that is good for a week; a script sends it as
`Authorization: Bearer <token>`. The cookie holds a time and a proof that its owner knew a token: it
cannot be made without one, and taking the token from the file ends it.
"""

import hashlib
import hmac
import re
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.common.clock import SECOND_NS, Clock
from penstock.common.errors import ConfigError

__all__ = ["COOKIE", "Login", "is_secure", "local_path", "to_login"]

COOKIE = "nsqadmin_session"
SESSION_SECONDS = 7 * 24 * 3600

# Shorter ones could be guessed; a file that has longer ones is some other file.
TOKEN_CHARS_MIN = 16
FILE_BYTES_MAX = 1 << 20

_BEARER = re.compile(r"(?i:bearer) +(\S+)")


class Login:
    """The tokens of one file."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises ConfigError if the file does not say who may come in."""
        self._path = path
        self._clock = clock
        self._tokens = _load(path)

    def reload(self) -> None:
        """Reads the file again. Raises ConfigError; the old tokens are then still good."""
        self._tokens = _load(self._path)

    def admits(self, request: Request) -> bool:
        """Whether this request comes from somebody who has a token."""
        given = _BEARER.fullmatch(request.headers.get("authorization", ""))
        if given is not None:
            return self.knows(given[1])
        return self._is_session(request.cookies.get(COOKIE, ""))

    def knows(self, token: str) -> bool:
        """Compares with all, whichever it is, so that the time does not tell which."""
        given = token.encode()
        return sum(hmac.compare_digest(known, given) for known in self._tokens) > 0

    def open_session(self, response: Response, token: str, path: str, *, secure: bool) -> None:
        """Gives the browser its cookie."""
        until = str(self._now_seconds() + SESSION_SECONDS)
        response.set_cookie(
            COOKIE,
            f"{until}.{_proof(token.encode(), until)}",
            max_age=SESSION_SECONDS,
            path=path,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def _is_session(self, cookie: str) -> bool:
        until, _, proof = cookie.partition(".")
        if not until.isascii() or not until.isdecimal() or int(until) < self._now_seconds():
            return False
        given = proof.encode()
        proofs = [_proof(token, until).encode() for token in self._tokens]
        return sum(hmac.compare_digest(each, given) for each in proofs) > 0

    def _now_seconds(self) -> int:
        return self._clock.wall_ns() // SECOND_NS


def is_secure(request: Request) -> bool:
    """Whether the browser came by HTTPS, to us or to a proxy before us."""
    said = (request.headers.get("x-forwarded-proto"), request.headers.get("x-scheme"))
    return request.url.scheme == "https" or "https" in said


def local_path(target: str, base: str) -> str:
    """Where to go on after logging in: a path of ours, whatever a link has asked for."""
    parts = urlsplit(target)
    is_ours = not parts.scheme and not parts.netloc and target.startswith(base)
    return target if is_ours and "\\" not in target and not target.startswith("//") else base


def to_login(base: str, request: Request) -> RedirectResponse:
    """Sends a browser to the login page, which sends it back here."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{base}login?next={quote(asked, safe='/')}", 303)


def _proof(token: bytes, until: str) -> str:
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
    """Raises ValueError, which quotes no token."""
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"longer than {FILE_BYTES_MAX} bytes")
    lines = [line.strip() for line in content.splitlines()]
    tokens = [line for line in lines if line and not line.startswith(b"#")]
    if not tokens:
        raise ValueError("there is no token in it")
    if any(len(token) < TOKEN_CHARS_MIN or len(token.split()) > 1 for token in tokens):
        raise ValueError(f"a token is a word of {TOKEN_CHARS_MIN} characters or more")
    return tokens
