"""`penstock history`: read the stored messages of a topic, without affecting channels.

Every node that has the topic has its own log. Stored messages are merged by time; with `follow`,
new messages are printed as they arrive. Blocking, with one connection per node.
"""

import queue
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from itertools import islice

import msgspec

from penstock.admin_api.models import StoredMessage
from penstock.admin_api.nsqd_api import api_error, api_url
from penstock.admin_api.seeking import format_position
from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json_with
from penstock.net.http_client.blocking import BlockingHttpClient
from penstock.net.http_client.messages import HttpReply

__all__ = ["HistoryLine", "body_line", "json_line", "read_history", "text_line"]

# With `follow`, nsqd sends an empty line every 5 s.
SILENCE_SECONDS = 15.0

_QUEUE_MAX = 1000
_LOG_ID_HEADER = "x-penstock-log-id"


class HistoryLine(StoredMessage):
    """A stored message with the JSON line that nsqd sent, and the id of its log, which is empty if
    nsqd has not sent it."""

    line: bytes = b""
    log_id: str = ""


_decode = msgspec.json.Decoder(HistoryLine).decode


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
) -> Iterator[HistoryLine]:
    """The messages from `start` to `end` of all nodes. Raises HttpRequestError. Without an
    `ssl_context`, the system's CAs verify nodes that require TLS."""
    args = {"topic": topic, "from": start}
    if end is not None:
        args["to"] = end
    if limit is not None:
        args["limit"] = str(limit)
    if follow:
        args["follow"] = "true"
    readers = [
        _NodeReader(address, args, headers or {}, ssl_context).messages() for address in addresses
    ]
    if len(readers) == 1:
        return readers[0]
    if follow:
        return islice(_merge_live(readers), limit)
    return islice(merge(*readers, key=lambda message: message.timestamp_ns), limit)


def body_line(message: HistoryLine) -> bytes:
    """The body of a message as a line of output."""
    return message.body_bytes + b"\n"


def json_line(message: HistoryLine) -> bytes:
    """The JSON that nsqd has sent for a message, as a line of output."""
    return message.line + b"\n"


def text_line(message: HistoryLine) -> bytes:
    """Position, time and body on one line; unprintable characters are escaped."""
    seconds, rest_ns = divmod(message.timestamp_ns, 1_000_000_000)
    at = f"{_second(seconds)}.{rest_ns // 1_000_000:03}"
    body = message.body
    if body is None:
        body = message.body_bytes.decode("utf-8", "backslashreplace")
    if not body.isprintable():
        body = "".join(each if each.isprintable() else _escaped(each) for each in body)
    position = format_position(message.log_id, message.seq)
    return f"{position}  {at}  {body}\n".encode("utf-8", "backslashreplace")


@lru_cache(maxsize=16)  # Saves formatting: many messages share a second.
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _escaped(character: str) -> str:
    return "\t" if character == "\t" else character.encode("unicode_escape").decode()


class _NodeReader:
    """Reads the messages of one node."""

    def __init__(
        self,
        address: str,
        args: Mapping[str, str],
        headers: Mapping[str, str],
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._address = address
        self._args = args
        self._headers = tuple(headers.items())
        self._http = BlockingHttpClient(
            connect_timeout_seconds=SILENCE_SECONDS,
            request_timeout_seconds=SILENCE_SECONDS,
            ssl_context=ssl_context,
        )
        self._log_id = ""
        self._next_seq: int | None = None

    def messages(self) -> Iterator[HistoryLine]:
        """The stored messages of this node, as they arrive. Raises HttpRequestError."""
        url = api_url(self._address, "/topic/messages", self._args)
        with self._translate_errors(), self._http.stream(url, headers=self._headers) as answer:
            if isinstance(answer, HttpReply):
                raise api_error(self._address, answer.status, answer.body, self._args)
            self._log_id = answer.headers.get(_LOG_ID_HEADER, "")
            rest = b""
            while chunk := answer.read():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    message = self._message(line)
                    self._next_seq = message.seq + 1
                    yield message

    def _message(self, line: bytes) -> HistoryLine:
        try:
            message = decode_json_with(_decode, line)
        except ValueError as error:
            reason = f"unexpected response: {error}"
            raise HttpRequestError(self._address, reason, status=200) from None
        message.line, message.log_id = line, self._log_id
        return message

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Names the node instead of the URL. If the stream broke, adds where to continue."""
        try:
            yield
        except HttpRequestError as failure:
            if failure.status is not None:
                raise
            reason = "no response" if failure.timed_out else failure.reason
            if self._next_seq is not None:
                reason += f"; continue with --from {format_position(self._log_id, self._next_seq)}"
            raise HttpRequestError(self._address, reason) from failure


def _merge_live(readers: Sequence[Iterator[HistoryLine]]) -> Iterator[HistoryLine]:
    """Messages of several nodes as they arrive. One daemon thread per node."""
    arrived: queue.Queue[HistoryLine | HttpRequestError | None] = queue.Queue(_QUEUE_MAX)

    def forward(reader: Iterator[HistoryLine]) -> None:
        try:
            for message in reader:
                arrived.put(message)
        except HttpRequestError as failure:
            arrived.put(failure)
        arrived.put(None)

    for reader in readers:
        threading.Thread(target=forward, args=(reader,), daemon=True).start()
    running = len(readers)
    while running:
        item = arrived.get()
        if isinstance(item, HttpRequestError):
            raise item
        if item is None:
            running -= 1
        else:
            yield item
