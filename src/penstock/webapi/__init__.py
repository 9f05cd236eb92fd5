"""What the HTTP APIs of the daemons share: a small HTTP/1.1 server, its routes and envelopes."""

from penstock.webapi.errors import CutShort, HttpError
from penstock.webapi.go_json import to_json
from penstock.webapi.promises import Promise
from penstock.webapi.requests import Request
from penstock.webapi.responses import OK, PLAIN_TEXT, V1, Response, Streaming, json_response
from penstock.webapi.routing import Handler, Route, Router
from penstock.webapi.server import HttpServer
from penstock.webapi.state import Gate, Limits

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
