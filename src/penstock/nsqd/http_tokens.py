"""Bearer tokens for the HTTP API, from the file of --http-auth-token-file. NSQ has none.

A line of the file has the scopes of a token, separated by commas, and the token:

    publish      qk1Bz9w0x3...
    read,admin   Zm9vYmFyYm...

Blank lines and lines that begin with `#` are skipped. A scope implies no other: `publish` does not
allow reading statistics, and `read` does not allow reading messages. `scopes_for` has the scopes of
each request. Without the option all requests are allowed, as in NSQ.

Tokens are never logged, and are compared in constant time.
"""

import hmac
import os
import re
import stat
from enum import StrEnum
from typing import Final

from penstock.common.errors import ConfigError
from penstock.common.logs import Logger
from penstock.net.http_server import Request, Response, error_response

__all__ = ["HttpTokens", "Scope", "scopes_for"]

# Enough for thousands of tokens; a longer file is the wrong one.
FILE_BYTES_MAX = 1 << 20

# RFC 6750, section 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_AUTHORIZATION = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)")


class Scope(StrEnum):
    """A permission of a token."""

    PUBLISH = "publish"  # publish messages
    CONSUME = "consume"  # read messages and commit positions
    READ = "read"  # read everything except messages
    ADMIN = "admin"  # change anything else


_READ, _ADMIN = frozenset([Scope.READ]), frozenset([Scope.ADMIN])
_PUBLISH, _CONSUME = frozenset([Scope.PUBLISH]), frozenset([Scope.CONSUME])

_PUBLIC_PATH: Final = "/ping"  # for health checks
_BY_PATH: Final = {
    "/pub": _PUBLISH,
    "/mpub": _PUBLISH,
    "/topic/messages": _CONSUME,
    "/channel/messages": _CONSUME,
    "/channel/commit": _CONSUME,
    "/topic/log": _CONSUME | _READ,
    "/topics/log": _CONSUME | _READ,
    "/channel/create": _CONSUME | _ADMIN,
}
_READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")

_Scopes = frozenset[Scope]


def scopes_for(method: str, path: str) -> _Scopes | None:
    """The scopes any of which allows a request, also to an unknown path; None if it is public."""
    if path == _PUBLIC_PATH:
        return None
    return _BY_PATH.get(path) or (_READ if method in _READ_METHODS else _ADMIN)


def _refusal(status: int, code: str, challenge: str) -> Response:
    headers = (("Www-Authenticate", f'Bearer realm="nsqd"{challenge}'),)
    return error_response(status, code, extra_headers=headers)


_NO_TOKEN: Final = _refusal(401, "UNAUTHORIZED", "")
_UNKNOWN_TOKEN: Final = _refusal(401, "UNAUTHORIZED", ', error="invalid_token"')
_OUT_OF_SCOPE: Final = _refusal(403, "FORBIDDEN", ', error="insufficient_scope"')

_Tokens = dict[bytes, _Scopes]


class HttpTokens:
    """Middleware that requires a token of the file."""

    def __init__(self, path: str, log: Logger) -> None:
        """Raises ConfigError if the file is missing or invalid."""
        self._path = path
        self._log = log
        self._tokens = self._load()

    def __call__(self, request: Request) -> Response | None:
        """None if the request is allowed, otherwise the error response."""
        needed = scopes_for(request.method, request.path)
        if needed is None:
            return None
        given = _AUTHORIZATION.fullmatch(request.header("Authorization") or "")
        if given is None:
            return _NO_TOKEN
        scopes = self._scopes(given[1].encode())
        if scopes is None:
            return _UNKNOWN_TOKEN
        return None if scopes & needed else _OUT_OF_SCOPE

    def reload(self) -> None:
        """Reads the file again. If it raises ConfigError, the old tokens stay valid."""
        self._tokens = self._load()

    def _scopes(self, given: bytes) -> _Scopes | None:
        """Compares with all tokens, so that the time does not reveal which one matches."""
        found = None
        for token, scopes in self._tokens.items():
            if hmac.compare_digest(token, given):
                found = scopes
        return found

    def _load(self) -> _Tokens:
        try:
            with open(self._path, "rb") as file:
                self._warn_if_exposed(os.fstat(file.fileno()))
                return _parse(file.read(FILE_BYTES_MAX + 1))
        except OSError as error:
            raise ConfigError(f"--http-auth-token-file: {error}") from error
        except ValueError as error:
            raise ConfigError(f"--http-auth-token-file: {self._path}: {error}") from error

    def _warn_if_exposed(self, status: os.stat_result) -> None:
        if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            self._log.warning(
                "%s contains tokens, but users other than its owner can read or change it",
                self._path,
            )


def _parse(content: bytes) -> _Tokens:
    """Raises ValueError, whose text contains no token."""
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"longer than {FILE_BYTES_MAX} bytes")
    tokens: _Tokens = {}
    for number, line in enumerate(content.decode().splitlines(), 1):
        words = line.split()
        if not words or line.lstrip().startswith("#"):
            continue
        if len(words) != 2 or not _TOKEN.fullmatch(words[1]):
            raise ValueError(f"line {number} must be scopes and a token")
        token = words[1].encode()
        tokens[token] = tokens.get(token, frozenset()) | _parse_scopes(words[0], number)
    if not tokens:
        raise ValueError("contains no token")
    return tokens


def _parse_scopes(text: str, line_number: int) -> _Scopes:
    names = text.split(",")
    if not set(names) <= set(Scope):
        known = ", ".join(Scope)
        raise ValueError(f"line {line_number} must begin with scopes ({known})")
    return frozenset(map(Scope, names))
