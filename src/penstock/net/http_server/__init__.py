"""What the HTTP APIs of the daemons share: a small HTTP/1.1 server, its routes and envelopes."""

from penstock.common.go_json import to_json
from penstock.net.http_server.deferred_response import Promise
from penstock.net.http_server.errors import CutShort, HttpError
from penstock.net.http_server.requests import Request
from penstock.net.http_server.responses import (
    OK,
    PLAIN_TEXT,
    V1,
    Response,
    Streaming,
    json_response,
)
from penstock.net.http_server.routing import Handler, Route, Router
from penstock.net.http_server.server import HttpServer
from penstock.net.http_server.state import Gate, Limits

__all__ = [
    "OK",
    "PLAIN_TEXT",
    "V1",
    "CutShort",
    "Gate",
    "Handler",
    "HttpError",
    "HttpServer",
    "Limits",
    "Promise",
    "Request",
    "Response",
    "Route",
    "Router",
    "Streaming",
    "json_response",
    "to_json",
]
