"""A small HTTP/1.1 server, which nsqd and nsqlookupd share."""

from penstock.common.go_json import to_json
from penstock.net.http_server.connection import HttpLimits, Middleware
from penstock.net.http_server.responses import (
    OK,
    PLAIN_TEXT,
    V1,
    DeferredResponse,
    HttpError,
    Response,
    StreamAbortedError,
    StreamingResponse,
    error_response,
    json_response,
)
from penstock.net.http_server.routing import Handler, Request, Route, Router
from penstock.net.http_server.server import HttpServer

__all__ = [
    "OK",
    "PLAIN_TEXT",
    "V1",
    "DeferredResponse",
    "Handler",
    "HttpError",
    "HttpLimits",
    "HttpServer",
    "Middleware",
    "Request",
    "Response",
    "Route",
    "Router",
    "StreamAbortedError",
    "StreamingResponse",
    "error_response",
    "json_response",
    "to_json",
]
