"""Client of one nsqd's HTTP API: history, contents of channels, seeking, retention and draining.

If nsqd refuses a request, an HttpRequestError names the node and explains nsqd's error code.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from penstock.admin_api.models import StoredMessage, TopicLogResponse, TopicsLogResponse
from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json, decode_json_with
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import HttpReply

__all__ = [
    "MESSAGE_STATES",
    "NsqdApi",
    "SearchResult",
    "api_error",
    "api_url",
    "error_code",
    "non_empty",
]

MESSAGE_STATES = ("queued", "inflight", "deferred")
"""States of a message in a channel."""

# Response limits. A page of 50 messages fits unless they are large; then the request fails.
PAGE_BYTES_MAX = 16 << 20
SEARCH_BYTES_MAX = 32 << 20
SEARCH_MESSAGES_MAX = 20_000

T = TypeVar("T")

_FIRST_SEQ_HEADER = "x-penstock-first-seq"

_ERROR_TEXTS = {
    "TOPIC_NOT_FOUND": "there is no topic {topic}",
    "CHANNEL_NOT_FOUND": "there is no channel {channel} of {topic}",
    "INVALID_TOPIC": "{topic} is not a valid topic name",
    "INVALID_ARG_TOPIC": "{topic} is not a valid topic name",
    "INVALID_ARG_CHANNEL": "{channel} is not a valid channel name",
    "TOPIC_IS_EPHEMERAL": "{topic} is ephemeral and has no history",
    "CHANNEL_IS_EPHEMERAL": "{channel} is ephemeral and cannot be moved",
    "SEQ_GONE": "the message is no longer stored; the first stored one is {first_seq}",
    "SEQ_TOO_HIGH": "there is no such message yet; the next one will be {next_seq}",
    "LOG_GONE": "the log of {topic} is another one: its id is {log_id}",
    "INVALID_RANGE": "the range ends before it begins",
    "INVALID_ARG_FROM": "{from} is not a position in the log",
    "INVALID_ARG_TO": "{to} is not a position in the log, or cannot be combined with follow",
    "INVALID_ARG_WAIT": "{wait} is not a duration of at most 60s",
    "TOO_MANY_READERS": "too many clients are reading history; try again",
    "MESSAGE_NOT_FOUND": "the message is no longer there",
    "CLIENT_NOT_FOUND": "the client is no longer connected",
    "CLIENT_NOT_UNIQUE": "several clients match",
    "NOT_FOUND": "this nsqd keeps no history: it is not Penstock's",
    "UNAUTHORIZED": "a token is needed: --token",
    "FORBIDDEN": "the token does not allow that",
}

_decode_lines = msgspec.json.Decoder(StoredMessage).decode_lines


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matching messages, the number of messages searched, and where to continue."""

    found: list[StoredMessage]
    looked_at: int
    next_seq: int | None


class NsqdApi:
    """The nsqd at an HTTP address: `host:port` or a URL."""

    def __init__(
        self, http: HttpClient, address: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.address = address
        self._http = http
        self._headers = tuple(headers)

    async def is_penstock(self) -> bool:
        """Whether this is Penstock's nsqd. Raises HttpRequestError."""
        url = api_url(self.address, "/topic/log", {})
        reply = await self._http.ask("GET", url, headers=self._headers)
        # Penstock reports the missing argument; NSQ's nsqd does not know the path.
        return reply.status == 400

    # History.

    async def topic_log(self, topic: str) -> TopicLogResponse:
        """The log of a topic: its id and its range of sequence numbers. Raises HttpRequestError."""
        reply = await self.send("GET", "/topic/log", {"topic": topic})
        return self._decode(reply, TopicLogResponse)

    async def topics_log(self, since: str = "", wait: str = "0") -> TopicsLogResponse:
        """The topics that have changed since a response with the version `since`; all topics by
        default. If there are none, nsqd waits for a change, at most for the duration `wait`, which
        the timeout of the HTTP client must exceed. Raises HttpRequestError."""
        reply = await self.send("GET", "/topics/log", {"since": since, "wait": wait})
        return self._decode(reply, TopicsLogResponse)

    async def seq_at(self, topic: str, position: str) -> int:
        """The sequence number at a position now. Raises HttpRequestError."""
        args = {"topic": topic, "from": position, "limit": "1"}
        reply = await self.send("GET", "/topic/messages", args)
        seq = reply.headers.get(_FIRST_SEQ_HEADER, "")
        if not seq.isdecimal():
            raise HttpRequestError(self.address, "unexpected response: it has no sequence number")
        return int(seq)

    async def messages(self, topic: str, start: str, limit: int) -> list[StoredMessage]:
        """Stored messages from a position on. Raises HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(limit)}
        reply = await self.send("GET", "/topic/messages", args, body_bytes_max=PAGE_BYTES_MAX)
        return _decode_messages(self.address, reply.body)

    async def search(self, topic: str, start: str, text: str, limit: int) -> SearchResult:
        """Stored messages from a position on whose body contains `text`, ignoring case. Raises
        HttpRequestError."""
        args = {"topic": topic, "from": start, "limit": str(SEARCH_MESSAGES_MAX)}
        reply = await self.send("GET", "/topic/messages", args, body_bytes_max=SEARCH_BYTES_MAX)
        # In a thread: tens of thousands of messages would block the event loop.
        return await asyncio.to_thread(_search, self.address, reply.body, text, limit)

    async def set_retention(self, topic: str, args: Mapping[str, str]) -> None:
        """Sets the retention of a topic. Raises HttpRequestError."""
        await self.send("POST", "/topic/retention", {"topic": topic, **args})

    # Channels.

    async def channel_messages(
        self, topic: str, channel: str, state: str, limit: int
    ) -> list[StoredMessage]:
        """Messages of a channel that are in one of the MESSAGE_STATES. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "state": state, "limit": str(limit)}
        reply = await self.send("GET", "/channel/messages", args, body_bytes_max=PAGE_BYTES_MAX)
        return _decode_messages(self.address, reply.body)

    async def cancel(self, topic: str, channel: str, id: str) -> None:
        """Removes a deferred message from a channel. Raises HttpRequestError."""
        await self.send("POST", "/channel/cancel", {"topic": topic, "channel": channel, "id": id})

    async def requeue(self, topic: str, channel: str, id: str) -> None:
        """Requeues a message that is in flight or deferred. Raises HttpRequestError."""
        await self.send("POST", "/channel/requeue", {"topic": topic, "channel": channel, "id": id})

    async def seek(self, topic: str, channel: str, position: str) -> None:
        """Moves a channel to a position. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "to": position}
        await self.send("POST", "/channel/seek", args)

    # The node.

    async def close_client(self, remote_address: str, connect_ts: str = "") -> None:
        """Closes the connection of a client; with `connect_ts`, only if it was opened then. Raises
        HttpRequestError."""
        args = {"remote_address": remote_address}
        await self.send("POST", "/client/close", args | non_empty(connect_ts=connect_ts))

    async def drain(self) -> None:
        """Makes nsqd start to drain. Raises HttpRequestError."""
        await self.send("POST", "/drain", {})

    async def send(
        self, method: str, path: str, args: Mapping[str, str], *, body_bytes_max: int | None = None
    ) -> HttpReply:
        """Sends any request. `body_bytes_max` replaces the client's limit of the response. Raises
        HttpRequestError unless the status is 200."""
        url = api_url(self.address, path, args)
        reply = await self._http.ask(
            method, url, headers=self._headers, body_bytes_max=body_bytes_max
        )
        if reply.status != 200:
            raise api_error(self.address, reply.status, reply.body, args)
        return reply

    def _decode(self, reply: HttpReply, type: type[T]) -> T:
        try:
            return decode_json(reply.body, type)
        except ValueError as error:
            raise HttpRequestError(self.address, f"unexpected response: {error}") from None


def non_empty(**args: str) -> dict[str, str]:
    """The arguments that have a value."""
    return {name: value for name, value in args.items() if value}


def api_url(address: str, path: str, args: Mapping[str, str]) -> str:
    """The URL of a request to the daemon at `host:port`, or at a URL."""
    base = address.rstrip("/") if "://" in address else f"http://{address}"
    return f"{base}{path}" + (f"?{urlencode(args)}" if args else "")


def api_error(address: str, status: int, body: bytes, args: Mapping[str, str]) -> HttpRequestError:
    """The error for a reply that is not 200. Known error codes are explained."""
    try:
        fields = decode_json(body, dict[str, object])
    except ValueError:
        fields = {}
    code = str(fields.get("message", ""))
    if code in _ERROR_TEXTS:
        # A server that is not nsqd may send the code without the other fields.
        text = _ERROR_TEXTS[code].format_map(defaultdict(lambda: "?", {**args, **fields}))
    else:
        text = f"it answered {status} {code or body[:200].decode(errors='replace')!r}"
    return HttpRequestError(address, text, status=status)


def error_code(body: bytes) -> str:
    """The code in an error reply of nsqd or nsqlookupd, such as TOPIC_NOT_FOUND; empty if the body
    has none."""
    try:
        return str(decode_json(body, dict[str, object]).get("message", ""))
    except ValueError:
        return ""


def _decode_messages(address: str, lines: bytes) -> list[StoredMessage]:
    try:
        return decode_json_with(_decode_lines, lines)
    except ValueError as error:
        raise HttpRequestError(address, f"unexpected response: {error}") from None


def _search(address: str, lines: bytes, text: str, limit: int) -> SearchResult:
    wanted = text.casefold()
    found: list[StoredMessage] = []
    looked_at, next_seq = 0, None
    messages = chain.from_iterable(_decode_messages(address, line) for line in lines.splitlines())
    for message in messages:
        looked_at, next_seq = looked_at + 1, message.seq + 1
        if wanted in (message.body or "").casefold() or wanted in message.id:
            found.append(message)
            if len(found) == limit:
                break
    return SearchResult(found, looked_at, next_seq)
