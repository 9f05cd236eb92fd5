"""All of nsqadmin's paths, put together to one application."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.logs import Logger
from penstock.nsqadmin.access import Admins
from penstock.nsqadmin.api import Api
from penstock.nsqadmin.assets import Assets
from penstock.nsqadmin.config_api import ConfigApi
from penstock.nsqadmin.envelope import json_error, text_reply
from penstock.nsqadmin.graphite import Graphite
from penstock.nsqadmin.inquiry import Cluster, UpstreamFailed
from penstock.nsqadmin.login import Login
from penstock.nsqadmin.middleware import Doors, RequestLog, SafeHeaders
from penstock.nsqadmin.notifications import Notifier
from penstock.nsqadmin.options import NsqadminOptions
from penstock.webapi import HttpError

__all__ = ["Services", "make_app"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the endpoints work with."""

    options: NsqadminOptions
    cluster: Cluster
    notifier: Notifier
    login: Login | None
    log: Logger

    @property
    def base(self) -> str:
        """What every path begins with, its last slash included."""
        return self.options.base_path.rstrip("/") + "/"


def make_app(services: Services) -> Starlette:
    """The application."""
    log = services.log

    async def on_upstream_failed(_: Request, error: Exception) -> Response:
        log.error("%s", error)
        return json_error(502, f"UPSTREAM_ERROR: {error}")

    return Starlette(
        routes=[_below(services.base, route) for route in _routes(services)],
        middleware=[
            Middleware(RequestLog, log=log),
            Middleware(SafeHeaders),
            Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5),
            Middleware(Doors, base=services.base, login=services.login),
        ],
        exception_handlers={
            HttpError: _on_http_error,
            UpstreamFailed: on_upstream_failed,
            HTTPException: _on_http_exception,
        },
    )


def _routes(services: Services) -> Sequence[Route]:
    options, cluster = services.options, services.cluster
    admins = Admins(options.acl_http_header, options.admin_users)
    config = ConfigApi(options, cluster, services.log)
    graphite = Graphite(
        options.graphite_url, options.statsd_interval_ns, cluster.http, services.log
    )
    assets = Assets(options.dev_static_dir)
    routes = [
        Route("/ping", _ping),
        Route("/config/{opt}", config.get, methods=["GET"]),
        Route("/config/{opt}", config.put, methods=["PUT"]),
        Route("/static/{asset:path}", assets.get),
        Route("/api/graphite", graphite.rate),
        *Api(cluster, admins, services.notifier).routes(),
    ]
    if options.proxy_graphite:
        routes.append(Route("/render", graphite.render))
    return routes


def _below(base: str, route: Route) -> Route:
    return Route(base + route.path[1:], route.endpoint, methods=list(route.methods or ()))


async def _ping(_: Request) -> Response:
    return text_reply("OK")


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return json_error(error.status, error.code)


_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


async def _on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = json_error(error.status_code, _CODES.get(error.status_code, "INVALID_REQUEST"))
    response.headers.update(error.headers or {})
    return response
