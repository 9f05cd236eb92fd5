"""Where a request of ours goes, and what it looks like on the wire. Pure."""

import base64
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json

__all__ = ["Headers", "Target", "https_instead", "without_secrets"]

_PORTS = {"http": 80, "https": 443}
_REQUEST_LINE = re.compile(r"[A-Z]+ /[!-~]* HTTP/1\.1")
_SECRETS = re.compile(r"(?<=//)[^/?#]*@|[?#].*", re.DOTALL)
_HEADER_LINE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t -~]*")

Headers = Iterable[tuple[str, str]]


def without_secrets(url: str) -> str:
    """`url` as it may be shown: its password and query are nobody's business."""
    return _SECRETS.sub("", url)


class _PortForHttps(msgspec.Struct):
    https_port: int


def https_instead(url: str, status: int, body: bytes) -> str | None:
    """Where to ask again, if the answer to `url` says that it is to be asked over TLS: NSQ's
    daemons do so by a 403 and their port."""
    parts = urlsplit(url)
    if status != 403 or parts.scheme != "http":
        return None
    try:
        port = decode_json(body, _PortForHttps).https_port
    except ValueError:
        return None
    host = parts.netloc.removesuffix(f":{parts.port}")
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


class Target:
    """Where a request goes."""

    def __init__(self, url: str) -> None:
        """Raises HttpRequestError if `url` is no URL of HTTP's."""
        self._shown_url = without_secrets(url)
        try:
            self._parts = urlsplit(url)
            self.host = self._parts.hostname or ""
            port = self._parts.port
        except ValueError as error:
            raise self.failure(f"not a URL: {error}") from None
        if self._parts.scheme not in _PORTS or not self.host or not url.isascii():
            raise self.failure("not a URL of http:// or https://")
        self.is_secure = self._parts.scheme == "https"
        self.port = _PORTS[self._parts.scheme] if port is None else port

    def failure(
        self, reason: str, *, status: int | None = None, timed_out: bool = False
    ) -> HttpRequestError:
        """The error that names this target, without what may be secret in its URL."""
        return HttpRequestError(self._shown_url, reason, status=status, timed_out=timed_out)

    def request(
        self, method: str, headers: Headers, body: bytes, *, keep_alive: bool = False
    ) -> bytes:
        """What is sent. Raises HttpRequestError rather than send what could be read otherwise."""
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        has_body = body or method not in ("GET", "HEAD")
        own = self._own_headers(len(body) if has_body else None, keep_alive=keep_alive)
        lines = [f"{name}: {value}" for name, value in (*own, *headers)]
        start = f"{method} {path} HTTP/1.1"
        if not _REQUEST_LINE.fullmatch(start) or not all(map(_HEADER_LINE.fullmatch, lines)):
            raise self.failure("cannot be asked: a character that HTTP does not allow")
        return "\r\n".join((start, *lines, "", "")).encode() + body

    def _own_headers(self, body_size: int | None, *, keep_alive: bool) -> Headers:
        user_info, _, authority = self._parts.netloc.rpartition("@")
        yield "Host", authority
        if not keep_alive:
            yield "Connection", "close"
        if body_size is not None:
            yield "Content-Length", str(body_size)
        if user_info:
            basic = base64.b64encode(unquote(user_info).encode()).decode()
            yield "Authorization", f"Basic {basic}"
