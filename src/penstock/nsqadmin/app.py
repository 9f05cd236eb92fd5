"""The Starlette application: routes, middleware and exception handlers."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.admin_api.cluster import Cluster, UpstreamError
from penstock.common.logs import Logger
from penstock.net.http_server import HttpError
from penstock.nsqadmin.access import Admins, AllowedHosts, AuthMiddleware
from penstock.nsqadmin.actions import Actions
from penstock.nsqadmin.api import Api
from penstock.nsqadmin.assets import Assets
from penstock.nsqadmin.config_api import ConfigApi
from penstock.nsqadmin.error_handlers import ErrorHandlers
from penstock.nsqadmin.graphite import Graphite
from penstock.nsqadmin.login import Login, LoginPages
from penstock.nsqadmin.message_pages import MessagePages
from penstock.nsqadmin.middleware import BodyLimit, RequestLog, SafeHeaders
from penstock.nsqadmin.notifications import Notifier
from penstock.nsqadmin.options import NsqadminOptions
from penstock.nsqadmin.pages import Pages
from penstock.nsqadmin.responses import Renderer, text_reply
from penstock.nsqadmin.watcher import Watcher

__all__ = ["Services", "make_app"]

# Open pages refresh themselves no more often than this.
REFRESH_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Objects that the endpoints share."""

    options: NsqadminOptions
    cluster: Cluster
    notifier: Notifier
    watcher: Watcher
    login: Login | None
    allowed_hosts: AllowedHosts
    log: Logger

    @property
    def base(self) -> str:
        """Prefix of every path, ending with a slash."""
        return self.options.base_path.rstrip("/") + "/"


def make_app(services: Services) -> Starlette:
    """Build the application."""
    options = services.options
    admins = Admins(options.acl_http_header, options.admin_users)
    assets = Assets(options.dev_static_dir)
    renderer = Renderer(
        services.base,
        asset_path=assets.path_of,
        is_admin=admins.is_admin,
        can_log_out=services.login is not None,
        graphite_url=options.graphite_url,
        refresh_seconds=max(services.watcher.interval_seconds, REFRESH_SECONDS_MIN),
    )
    routes = [*_api_routes(services, admins, assets), *_page_routes(services, admins, renderer)]
    handlers = ErrorHandlers(renderer, services.base, services.log)
    return Starlette(
        routes=[_with_base_path(services.base, route) for route in routes],
        middleware=[
            Middleware(RequestLog, log=services.log),
            Middleware(SafeHeaders),
            Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5),
            Middleware(
                AuthMiddleware,
                base=services.base,
                login=services.login,
                allowed_hosts=services.allowed_hosts,
            ),
            Middleware(BodyLimit),
        ],
        exception_handlers={
            HttpError: handlers.on_http_error,
            UpstreamError: handlers.on_upstream_failed,
            HTTPException: handlers.on_http_exception,
        },
    )


def _api_routes(services: Services, admins: Admins, assets: Assets) -> Sequence[Route]:
    options, cluster = services.options, services.cluster
    config = ConfigApi(options, cluster, services.log)
    graphite = Graphite(
        options.graphite_url, options.statsd_interval_ns, cluster.http, services.log
    )
    routes = [
        Route("/ping", _ping),
        Route("/config/{opt}", config.get, methods=["GET"]),
        Route("/config/{opt}", config.put, methods=["PUT"]),
        Route("/static/{asset:path}", assets.get),
        Route("/fonts/{asset:path}", _no_font),
        Route("/api/graphite", graphite.rate),
        *Api(cluster, admins, services.notifier).routes(),
    ]
    if options.proxy_graphite:
        routes.append(Route("/render", graphite.render))
    return routes


def _page_routes(services: Services, admins: Admins, renderer: Renderer) -> Sequence[Route]:
    cluster, watcher = services.cluster, services.watcher
    routes = [
        *Pages(cluster, watcher, renderer).routes(),
        *MessagePages(cluster, renderer).routes(),
        *Actions(cluster, watcher, renderer, admins, services.notifier).routes(),
    ]
    if services.login is not None:
        routes += LoginPages(services.login, services.base, renderer).routes()
    return routes


def _with_base_path(base: str, route: Route) -> Route:
    return Route(base + route.path[1:], route.endpoint, methods=list(route.methods or ()))


async def _ping(_: Request) -> Response:
    return text_reply("OK")


async def _no_font(_: Request) -> Response:
    return text_reply("NOT_FOUND", 404)
