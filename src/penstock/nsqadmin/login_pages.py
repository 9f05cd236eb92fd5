"""The page to log in on, and the way out."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.nsqadmin.login import COOKIE, Login, is_secure, local_path
from penstock.nsqadmin.rendering import Renderer

__all__ = ["LoginPages"]


class LoginPages:
    """The endpoints, and the table of them."""

    def __init__(self, login: Login, base: str, renderer: Renderer) -> None:
        self._login = login
        self._base = base
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """The table."""
        return [
            Route("/login", self._show, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        next_path = local_path(request.query_params.get("next", ""), self._base)
        return self._renderer.page(request, "login.html", next_path=next_path, problem="")

    async def _log_in(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=5)
        token, asked = str(form.get("token", "")).strip(), str(form.get("next", ""))
        next_path = local_path(asked, self._base)
        if not self._login.knows(token):
            problem = "No such token."
            return self._renderer.page(
                request, "login.html", status=401, next_path=next_path, problem=problem
            )
        response = self._renderer.redirect(next_path)
        self._login.open_session(response, token, self._base, secure=is_secure(request))
        return response

    async def _log_out(self, request: Request) -> Response:
        response = self._renderer.redirect(self._renderer.link("login"))
        response.delete_cookie(COOKIE, path=self._base)
        return response
