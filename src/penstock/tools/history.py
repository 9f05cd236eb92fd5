"""`penstock history`: read messages back from the logs of a topic, without touching a channel.

A topic has a log on every node that has it. What is stored is merged by time; what is yet to come,
with `follow`, is shown as it comes. Blocking: one connection a node, and nothing is read ahead of
what has been printed but what the sockets hold.
"""

import queue
import ssl
import threading
from base64 import b64decode
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice
from urllib.parse import urlsplit

import msgspec

from penstock.admin_api.nsqd_api import api_error, api_url
from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json_with
from penstock.net.http_client.client import https_instead
from penstock.net.http_client.failures import http_reason

__all__ = ["StoredMessage", "body_line", "json_line", "read_history", "text_line"]

# While a topic is followed, nsqd sends an empty line every 5 s.
SILENCE_SECONDS = 15.0

_READ_BYTES = 256 * 1024
_QUEUE_MAX = 1000


class StoredMessage(msgspec.Struct):
    """A message as nsqd has it in its log; `line` is all of it, as JSON."""

    seq: int
    timestamp_ns: int
    body: str | None = None
    body_base64: str | None = None
    line: bytes = b""

    @property
    def body_bytes(self) -> bytes:
        """What was published."""
        if self.body is None:
            return b64decode(self.body_base64 or "")
        return self.body.encode()


_decode = msgspec.json.Decoder(StoredMessage).decode


def read_history(
    addresses: Sequence[str],
    topic: str,
    *,
    start: str,
    end: str | None = None,
    limit: int | None = None,
    follow: bool = False,
    headers: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Iterator[StoredMessage]:
    """The messages from `start` to `end`, of all these nodes. Raises HttpRequestError. Without an
    `ssl_context`, nodes that want TLS are judged by the system's CAs."""
    args = {"topic": topic, "from": start}
    if end is not None:
        args["to"] = end
    if limit is not None:
        args["limit"] = str(limit)
    if follow:
        args["follow"] = "true"
    readings = [
        _NodeReader(address, args, headers or {}, ssl_context).messages() for address in addresses
    ]
    if len(readings) == 1:
        return readings[0]
    if follow:
        return islice(_as_they_come(readings), limit)
    return islice(merge(*readings, key=lambda message: message.timestamp_ns), limit)


def body_line(message: StoredMessage) -> bytes:
    """Nothing but what was published."""
    return message.body_bytes + b"\n"


def json_line(message: StoredMessage) -> bytes:
    """As nsqd wrote it."""
    return message.line + b"\n"


def text_line(message: StoredMessage) -> bytes:
    """Number, time, and the body on one line, whatever it is."""
    seconds, rest_ns = divmod(message.timestamp_ns, 1_000_000_000)
    at = f"{_second(seconds)}.{rest_ns // 1_000_000:03}"
    body = message.body
    if body is None:
        body = message.body_bytes.decode("utf-8", "backslashreplace")
    if not body.isprintable():
        body = "".join(each if each.isprintable() else _escaped(each) for each in body)
    return f"{message.seq}  {at}  {body}\n".encode("utf-8", "backslashreplace")


@lru_cache(maxsize=16)  # Many messages come in one second, and several nodes are merged by time.
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _escaped(character: str) -> str:
    return "\t" if character == "\t" else character.encode("unicode_escape").decode()


class _NodeReader:
    """What one node sends."""

    def __init__(
        self,
        address: str,
        args: Mapping[str, str],
        headers: Mapping[str, str],
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._address = address
        self._args = args
        self._headers = dict(headers)
        self._ssl_context = ssl_context
        self._next_seq: int | None = None

    def messages(self) -> Iterator[StoredMessage]:
        url: str | None = api_url(self._address, "/topic/messages", self._args)
        while url is not None:
            connection = self._connection(url)
            try:
                url = yield from self._parsed(connection, url)
            except (OSError, HTTPException) as failure:
                raise self._broken(failure) from failure
            finally:
                connection.close()

    def _parsed(
        self, connection: HTTPConnection, url: str
    ) -> Generator[StoredMessage, None, str | None]:
        """Returns where else to ask, if they are not to be had here."""
        parts = urlsplit(url)
        connection.request("GET", f"{parts.path}?{parts.query}", headers=self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read()
            if (elsewhere := https_instead(url, answer.status, said)) is not None:
                return elsewhere
            raise api_error(self._address, answer.status, said, self._args)
        rest = b""
        while chunk := answer.read1(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                message = self._message(line)
                self._next_seq = message.seq + 1
                yield message
        return None

    def _connection(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise HttpRequestError(self._address, f"not an address: {error}") from None
        if parts.scheme == "https":
            context = self._ssl_context or ssl.create_default_context()
            return HTTPSConnection(host, port, timeout=SILENCE_SECONDS, context=context)
        return HTTPConnection(host, port, timeout=SILENCE_SECONDS)

    def _message(self, line: bytes) -> StoredMessage:
        try:
            message = decode_json_with(_decode, line)
        except ValueError as error:
            raise HttpRequestError(self._address, f"unexpected answer: {error}") from None
        message.line = line
        return message

    def _broken(self, failure: OSError | HTTPException) -> HttpRequestError:
        """Where it broke off is where one can go on."""
        reason = "no answer" if isinstance(failure, TimeoutError) else http_reason(failure)
        if self._next_seq is not None:
            reason += f"; go on with --from {self._next_seq}"
        return HttpRequestError(self._address, reason)


def _as_they_come(readings: Sequence[Iterator[StoredMessage]]) -> Iterator[StoredMessage]:
    """From several nodes at once: a thread each, which ends with the process."""
    arrived: queue.Queue[StoredMessage | HttpRequestError | None] = queue.Queue(_QUEUE_MAX)

    def pass_on(reading: Iterator[StoredMessage]) -> None:
        try:
            for message in reading:
                arrived.put(message)
        except HttpRequestError as failure:
            arrived.put(failure)
        arrived.put(None)

    for reading in readings:
        threading.Thread(target=pass_on, args=(reading,), daemon=True).start()
    running = len(readings)
    while running:
        item = arrived.get()
        if isinstance(item, HttpRequestError):
            raise item
        if item is None:
            running -= 1
        else:
            yield item
