"""Access control: host names, cross-site requests, logins and admin users.

A request passes these checks in this order:

1. `AllowedHosts`: the Host header names this nsqadmin (protection against DNS rebinding).
2. `is_cross_site`: a change does not come from a page of another site. Browsers mark such requests
   with headers that a page cannot forge. Scripts send no such headers and are not affected.
3. Login, if --auth-token-file is set: see `login`.
4. `Admins`: if --admin-user is set, a change must come from one of these users. A reverse proxy
   names the user in a header, as with NSQ's nsqadmin.

`AuthMiddleware` applies the first three; endpoints that change something apply the fourth.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.net import origins
from penstock.net.http_server import HttpError
from penstock.nsqadmin.login import Login, login_redirect
from penstock.nsqadmin.responses import json_error, wants_page

__all__ = ["Admins", "AllowedHosts", "AuthMiddleware", "is_cross_site"]

PORT_DIGITS_MAX = 5

AsgiResponder = Callable[[Scope, Receive, Send], Awaitable[None]]


class Admins:
    """The users that may change things."""

    def __init__(self, header: str, users: Collection[str]) -> None:
        self._header = header
        self._users = frozenset(users)

    def is_admin(self, request: Request) -> bool:
        """Whether the request may change things: always, if no admin users are configured."""
        return not self._users or request.headers.get(self._header) in self._users

    def check(self, request: Request) -> None:
        """Raises HttpError 403 if the request may not change things."""
        if not self.is_admin(request):
            raise HttpError(403, "FORBIDDEN")


class AllowedHosts:
    """The host names under which nsqadmin serves requests: protection against DNS rebinding.

    After a page is loaded, the owner of its host name can let that name resolve to nsqadmin's
    address; the browser then treats the page as part of nsqadmin. So public names must be listed:
    `*` allows all, `*.example.com` all subdomains. IP addresses, names without a dot, names in
    private domains and the machine's own names are always allowed, because an attacker cannot
    register them.

    Without a list, a public name is refused only if the Host header has nsqadmin's own port. A
    browser that connects directly always sends that port; behind a reverse proxy, it sends the
    proxy's.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self._own_names = {os.uname().nodename.lower()}

    async def add_full_name(self) -> None:
        """Allow the machine's name with its domain, if DNS or /etc/hosts has it."""
        name = os.uname().nodename
        with suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(
                name, None, flags=socket.AI_CANONNAME
            )
            self._own_names |= {full_name.lower() for *_, full_name, _ in found if full_name}

    def refused_name(self, request: Request) -> str:
        """The host name because of which the request is refused; empty if it is allowed."""
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
    """Name and port of a Host header; the default port is 80."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > PORT_DIGITS_MAX:
        name, port = host, "80"
    return name.lower().removesuffix("."), int(port)


def is_cross_site(request: Request) -> bool:
    """Whether a browser sends the request on behalf of another site.

    A page cannot forge these headers. It could add X-Forwarded-Host only after a preflight request,
    which nsqadmin refuses.
    """
    headers = request.headers
    hosts = (headers.get("host", ""), headers.get("x-forwarded-host", ""))
    return origins.is_cross_site(headers.get("sec-fetch-site"), headers.get("origin"), hosts)


class AuthMiddleware:
    """Refuse requests with foreign host names, from other sites, or without a login."""

    def __init__(
        self, app: ASGIApp, base: str, login: Login | None, allowed_hosts: AllowedHosts
    ) -> None:
        self._app = app
        self._base = base
        self._allowed_hosts = allowed_hosts
        self._login = login
        self._public_paths = (f"{base}login", f"{base}static/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._responder(request)(scope, receive, send)

    def _responder(self, request: Request) -> AsgiResponder:
        if request.scope["path"] == f"{self._base}ping":
            return self._app
        if name := self._allowed_hosts.refused_name(request):
            remedy = f"start nsqadmin with --allowed-host={name}"
            return json_error(403, f"HOST_NOT_ALLOWED: to use this host name, {remedy}")
        if request.method not in origins.SAFE_METHODS and is_cross_site(request):
            return json_error(403, "FORBIDDEN")
        # Not request.url.path, which depends on the Host header.
        if self._login is None or request.scope["path"].startswith(self._public_paths):
            return self._app
        if self._login.is_logged_in(request):
            return self._app
        if wants_page(request):
            return login_redirect(self._base, request)
        return json_error(401, "UNAUTHORIZED")
