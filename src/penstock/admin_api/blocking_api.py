"""Blocking requests to the HTTP APIs of nsqds and nsqlookupds: for Spark, on the driver and on
executors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from penstock.admin_api.lookupd_api import registered_nodes
from penstock.admin_api.models import RegisteredNode
from penstock.admin_api.nsqd_api import api_url, error_code
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.blocking import BlockingHttpClient, HttpStream
from penstock.net.http_client.messages import HttpReply, decode_reply, without_secrets

__all__ = ["ApiReply", "BlockingApi"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A complete response, whatever its status."""

    url: str
    reply: HttpReply

    @property
    def status(self) -> int:
        return self.reply.status

    @property
    def error_code(self) -> str:
        """Such as TOPIC_NOT_FOUND; empty if there is none."""
        return error_code(self.reply.body)

    def decode(self, type: type[T]) -> T:
        """The JSON in the body. Raises HttpRequestError unless the status is 200."""
        return decode_reply(self.url, self.reply, type)

    def error(self) -> HttpRequestError:
        """The error for a reply that is not 200."""
        text = self.reply.body[:200].decode("utf-8", "replace")
        url = without_secrets(self.url)
        return HttpRequestError(url, f"got {self.status} {text}", status=self.status)


class BlockingApi:
    """Sends requests to daemons at base URLs, with a token if there is one. Follows a daemon's
    demand for HTTPS. Connections are kept for later requests until `close`."""

    def __init__(self, http: BlockingHttpClient, token: str = "") -> None:
        self._http = http
        self._headers = (("Authorization", f"Bearer {token}"),) if token else ()

    def get(self, base: str, path: str, **args: object) -> ApiReply:
        """Raises HttpRequestError if there is no response."""
        url = _url(base, path, args)
        return ApiReply(url, self._http.ask("GET", url, headers=self._headers))

    def post(self, base: str, path: str, content: bytes = b"", /, **args: object) -> ApiReply:
        """Raises HttpRequestError if there is no response."""
        url = _url(base, path, args)
        return ApiReply(url, self._http.ask("POST", url, headers=self._headers, body=content))

    def get_json(self, base: str, path: str, type: type[T], **args: object) -> T:
        """The JSON of a response with status 200. Raises HttpRequestError."""
        return self.get(base, path, **args).decode(type)

    def registered_nodes(self, lookupd: str, path: str, **args: object) -> list[RegisteredNode]:
        """The nsqds in the response to `/lookup` or `/nodes`. Raises HttpRequestError."""
        answer = self.get(lookupd, path, **args)
        return registered_nodes(answer.url, answer.reply)

    @contextmanager
    def stream(
        self, base: str, path: str, accept: str, **args: object
    ) -> Iterator[HttpStream | ApiReply]:
        """Yields the body of a 200 as a stream, and any other response complete. Raises
        HttpRequestError."""
        url = _url(base, path, args)
        headers = (("Accept", accept), *self._headers)
        with self._http.stream(url, headers=headers) as answer:
            yield ApiReply(url, answer) if isinstance(answer, HttpReply) else answer

    def close(self) -> None:
        """Closes the idle connections. Requests are still possible."""
        self._http.close()


def _url(base: str, path: str, args: dict[str, object]) -> str:
    return api_url(base, path, {name: str(value) for name, value in args.items()})
