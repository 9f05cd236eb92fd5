"""/config: reads options, and changes the two that can be changed at run time."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

from starlette.requests import Request
from starlette.responses import Response

from penstock.admin_api.cluster import Cluster
from penstock.common.addresses import is_address
from penstock.common.go_json import decode_json
from penstock.common.logs import Logger, LogLevel
from penstock.common.options import option_value
from penstock.net.http_server import HttpError
from penstock.nsqadmin.options import NsqadminOptions
from penstock.nsqadmin.responses import json_reply

__all__ = ["ConfigApi"]

VALUE_BYTES_MAX = 1024 * 1024


class ConfigApi:
    """The endpoints below /config."""

    def __init__(self, options: NsqadminOptions, cluster: Cluster, log: Logger) -> None:
        self._options = options
        self._cluster = cluster
        self._log = log

    async def get(self, request: Request) -> Response:
        """`GET /config/:opt`."""
        self._check_client_address(request)
        return self._option_reply(request.path_params["opt"])

    async def put(self, request: Request) -> Response:
        """`PUT /config/:opt`."""
        self._check_client_address(request)
        key = request.path_params["opt"]
        value = await _read_value(request)
        match key:
            case "nsqlookupd_http_addresses":
                self._set_lookupds(value)
            case "log_level":
                self._set_log_level(value)
            case _:
                raise HttpError(400, "INVALID_OPTION")
        return self._option_reply(key)

    def _option_reply(self, key: str) -> Response:
        try:
            return json_reply(option_value(self._options, key))
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None

    def _set_lookupds(self, value: bytes) -> None:
        try:
            addresses = decode_json(value, list[str])
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if not all(map(is_address, addresses)) or not (addresses or self._cluster.nsqds):
            raise HttpError(400, "INVALID_VALUE")
        self._options = replace(self._options, lookupd_http_addresses=tuple(addresses))
        self._cluster.lookupds = tuple(addresses)

    def _set_log_level(self, value: bytes) -> None:
        try:
            level = LogLevel.parse(value.decode())
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        self._options = replace(self._options, log_level=level)
        self._log.level = level

    def _check_client_address(self, request: Request) -> None:
        cidr = self._options.allow_config_from_cidr
        if not cidr:
            return
        try:
            address = ip_address(request.client.host if request.client else "")
        except ValueError:
            raise HttpError(400, "INVALID_REMOTE_ADDR") from None
        if address not in ip_network(cidr, strict=False):
            raise HttpError(403, "FORBIDDEN")


async def _read_value(request: Request) -> bytes:
    value = bytearray()
    async for piece in request.stream():
        value += piece
        if len(value) > VALUE_BYTES_MAX:
            raise HttpError(413, "INVALID_VALUE")
    if not value:
        raise HttpError(413, "INVALID_VALUE")
    return bytes(value)
