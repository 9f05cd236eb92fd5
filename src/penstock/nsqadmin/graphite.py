"""NSQ's endpoints for Graphite: a proxy for its /render, and rates of counters.

The charts of nsqadmin's own pages do not use Graphite.
"""

from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.common.clock import SECOND_NS
from penstock.common.errors import HttpRequestError
from penstock.common.logs import Logger
from penstock.net.http_client.client import HttpClient
from penstock.net.http_server import HttpError
from penstock.nsqadmin.responses import json_reply

__all__ = ["Graphite"]


class _Series(msgspec.Struct):
    target: str = ""
    datapoints: list[list[float | None]] = []


class Graphite:
    """The Graphite server at `url`."""

    def __init__(self, url: str, statsd_interval_ns: int, http: HttpClient, log: Logger) -> None:
        self._url = url.rstrip("/")
        self._interval_seconds = max(statsd_interval_ns // SECOND_NS, 1)
        self._http = http
        self._log = log

    async def render(self, request: Request) -> Response:
        """`GET /render`: forward the query to Graphite."""
        query = f"?{request.url.query}" if request.url.query else ""
        try:
            reply = await self._http.fetch("GET", f"{self._url}/render{query}")
        except HttpRequestError as error:
            self._log.error("graphite request failed - %s", error)
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        kind = reply.headers.get("content-type", "application/octet-stream")
        return Response(reply.body, reply.status, headers={"Content-Type": kind})

    async def rate(self, request: Request) -> Response:
        """`GET /api/graphite`: rate of a counter per second, over the last statsd interval."""
        if request.query_params.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = request.query_params.get("target")
        if target is None:
            raise HttpError(400, "INVALID_ARG_TARGET")
        return json_reply({"rate": await self._rate_of(target)})

    async def _rate_of(self, target: str) -> str:
        seconds = self._interval_seconds
        query = {
            "format": "json",
            "from": f"-{2 * seconds}sec",
            "target": target,
            "until": f"-{seconds}sec",
        }
        url = f"{self._url}/render?{urlencode(query)}"
        try:
            series = await self._http.get_json(url, list[_Series])
        except HttpRequestError as error:
            self._log.error("graphite request failed - %s", error)
            raise HttpError(500, "INTERNAL_ERROR") from None
        value = series[0].datapoints[0][0] if series and series[0].datapoints else None
        return "N/A" if value is None or value < 0 else f"{value / seconds:.2f}"
