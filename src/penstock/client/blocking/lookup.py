"""Blocking lookup of nsqds in nsqlookupd."""

from collections.abc import Sequence

from penstock.client.config import ClientConfig
from penstock.client.discovery import parse_tcp_addresses, request_headers
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.net.http_client.blocking import BlockingHttpClient

__all__ = ["look_up"]


def look_up(lookupds: Sequence[str], path: str, config: ClientConfig) -> set[str]:
    """TCP addresses of the nsqds that any of the nsqlookupds knows. Raises NotConnectedError if all
    nsqlookupds fail."""
    http = BlockingHttpClient(
        connect_timeout_seconds=config.dial_timeout,
        request_timeout_seconds=config.lookupd_poll_timeout,
    )
    found: set[str] = set()
    failures = []
    for lookupd in lookupds:
        try:
            reply = http.fetch("GET", lookupd + path, headers=request_headers(config))
            found |= parse_tcp_addresses(lookupd + path, reply)
        except HttpRequestError as failure:
            failures.append(failure)
    if len(failures) == len(lookupds):
        raise NotConnectedError("no nsqlookupd answered: " + "; ".join(map(str, failures)))
    return found
