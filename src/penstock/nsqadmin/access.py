"""Who may do what.

Three questions, each asked of every request that it concerns:

- Is the visitor logged in? Only if there is a file of tokens: see `login`.
- May the user change things? NSQ's rule: if there are admin users, a proxy before us has to name
  one of them in a header.
- Does a change come from our own pages, or from something that is no browser? A browser tells on
  every page that makes it send something, so that no other site can use a visitor's rights. Scripts
  that use the API, as NSQ's have always done, send no such headers and are not asked for any.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request

from penstock.webapi import HttpError

__all__ = ["Admins", "check_same_origin", "is_cross_site"]


class Admins:
    """Those who may change things."""

    def __init__(self, header: str, users: Collection[str]) -> None:
        self._header = header
        self._users = frozenset(users)

    def includes(self, request: Request) -> bool:
        """Whether this request may change things. Without admin users, every one may."""
        return not self._users or request.headers.get(self._header) in self._users

    def check(self, request: Request) -> None:
        """Raises HttpError 403 if it may not."""
        if not self.includes(request):
            raise HttpError(403, "FORBIDDEN")


def check_same_origin(request: Request) -> None:
    """Raises HttpError 403 if a browser sends this on behalf of another site."""
    if is_cross_site(request):
        raise HttpError(403, "FORBIDDEN")


def is_cross_site(request: Request) -> bool:
    """Browsers say so in Sec-Fetch-Site where the connection can be trusted, and in Origin, which
    has to be the host that was asked for, everywhere else. No page can forge these headers, nor add
    an X-Forwarded-Host without asking first, which we would not allow."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return False
    hosts = (request.headers.get("host"), request.headers.get("x-forwarded-host"))
    return urlsplit(origin).netloc not in hosts
