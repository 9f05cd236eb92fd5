"""Asking lookupds where nsqds are, once, and waiting for it."""

import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

from penstock.client.config import ClientConfig
from penstock.client.discovery import parse_answer, request_headers
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.net.http_client.failures import http_reason
from penstock.net.http_client.target import without_secrets

__all__ = ["look_up"]

ANSWER_BYTES_MAX = 64 * 1024 * 1024

# Without the proxies of the environment, which are not meant for our own daemons.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def look_up(lookupds: Sequence[str], path: str, config: ClientConfig) -> set[str]:
    """The addresses that the lookupds know together. Raises NotConnectedError if none answers."""
    found: set[str] = set()
    failures = []
    for lookupd in lookupds:
        try:
            found |= _ask(lookupd + path, config)
        except HttpRequestError as failure:
            failures.append(failure)
    if len(failures) == len(lookupds):
        raise NotConnectedError("no lookupd can be asked: " + "; ".join(map(str, failures)))
    return found


def _ask(url: str, config: ClientConfig) -> frozenset[str]:
    try:
        request = urllib.request.Request(url, headers=dict(request_headers(config)))  # noqa: S310
        with _open(request, timeout=config.lookupd_poll_timeout) as answer:
            return parse_answer(url, answer.status, answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return parse_answer(url, refusal.code, refusal.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError, HTTPException) as failure:
        # urllib wraps connection errors in a URLError.
        reason = getattr(failure, "reason", failure)
        cause = reason if isinstance(reason, OSError) else failure
        raise HttpRequestError(without_secrets(url), http_reason(cause)) from None
