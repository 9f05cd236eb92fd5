"""Who may do what.

Four checks, each for the requests that it concerns:

- Is the visitor logged in? Only if there is a file of tokens: see `login`.
- May the user change things? NSQ's rule: if there are admin users, a proxy before us has to name
  one of them in a header.
- Is nsqadmin addressed by one of its own names? See `AllowedHosts`.
- Does a change come from our own pages, or from something that is no browser? A browser tells on
  every page that makes it send something, so that no other site can use a visitor's rights. Scripts
  that use the API, as NSQ's have always done, send no such headers and are not asked for any.
"""

import asyncio
import os
import socket
from collections.abc import Collection
from contextlib import suppress

from starlette.requests import Request

from penstock.net import origins
from penstock.net.http_server import HttpError

__all__ = ["Admins", "AllowedHosts", "is_cross_site"]

# A port has no more digits than this.
PORT_DIGITS_MAX = 5


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


class AllowedHosts:
    """The host names that nsqadmin answers to, against DNS rebinding.

    After a page is loaded, the owner of its host name can let that name resolve to our address; the
    browser then treats the page as being of nsqadmin's origin. So a public name has to be allowed;
    `*` allows all, `*.example.com` all subdomains. IP addresses, names without a dot, names in
    private domains and the machine's own names are always allowed, because an attacker cannot
    register them.

    Without a list, public names are refused only together with the port that we listen on. A
    browser that connects to us directly always sends that port; behind a reverse proxy it sends the
    proxy's.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self._own_names = {os.uname().nodename.lower()}

    async def add_full_name(self) -> None:
        """Adds the machine's name with its domain, if DNS or /etc/hosts has it."""
        name = os.uname().nodename
        with suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(
                name, None, flags=socket.AI_CANONNAME
            )
            self._own_names |= {full_name.lower() for *_, full_name, _ in found if full_name}

    def refused(self, request: Request) -> str:
        """The host name for which a request is refused; empty if it is allowed."""
        host = request.headers.get("host", "")
        name, port = _split_host(host)
        if not origins.is_public_name(name) or name in self._own_names or self._includes(name):
            return ""
        _, own_port = request.scope.get("server") or ("", None)
        if not self._allowed and port != own_port:
            return ""
        return name

    def _includes(self, name: str) -> bool:
        labels = name.split(".")
        parents = (".".join(["*", *labels[start:]]) for start in range(1, len(labels)))
        return not self._allowed.isdisjoint(["*", name, *parents])


def _split_host(host: str) -> tuple[str, int]:
    """Name and port of a Host header; port 80 if it has none."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > PORT_DIGITS_MAX:
        name, port = host, "80"
    return name.lower().removesuffix("."), int(port)


def is_cross_site(request: Request) -> bool:
    """Whether a browser sends this on behalf of another site. No page can forge these headers, nor
    add an X-Forwarded-Host without a preflight request, which we do not allow."""
    headers = request.headers
    hosts = (headers.get("host", ""), headers.get("x-forwarded-host", ""))
    return origins.is_cross_site(headers.get("sec-fetch-site"), headers.get("origin"), hosts)
