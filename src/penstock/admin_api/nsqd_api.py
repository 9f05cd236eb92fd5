"""Client of one nsqd's HTTP API: history, seeking and draining.

If nsqd refuses a request, an HttpRequestError names the node and explains nsqd's error code.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from penstock.admin_api.models import TopicLogResponse
from penstock.common.errors import HttpRequestError
from penstock.common.go_json import decode_json
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import HttpReply

__all__ = ["NsqdApi", "api_error", "api_url", "error_code"]

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
    "INVALID_RANGE": "the range ends before it begins",
    "INVALID_ARG_FROM": "{from} is not a position in the log",
    "INVALID_ARG_TO": "{to} is not a position in the log, or cannot be combined with follow",
    "TOO_MANY_READERS": "too many clients are reading history; try again",
    "MESSAGE_NOT_FOUND": "the message is no longer there",
    "CLIENT_NOT_FOUND": "the client is no longer connected",
    "CLIENT_NOT_UNIQUE": "several clients match",
    "NOT_FOUND": "this nsqd keeps no history: it is not Penstock's",
    "UNAUTHORIZED": "a token is needed: --token",
    "FORBIDDEN": "the token does not allow that",
}


class NsqdApi:
    """The nsqd at an HTTP address: `host:port` or a URL."""

    def __init__(
        self, http: HttpClient, address: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.address = address
        self._http = http
        self._headers = tuple(headers)

    async def topic_log(self, topic: str) -> TopicLogResponse:
        """Raises HttpRequestError."""
        reply = await self.send("GET", "/topic/log", {"topic": topic})
        try:
            return decode_json(reply.body, TopicLogResponse)
        except ValueError as error:
            raise HttpRequestError(self.address, f"unexpected response: {error}") from None

    async def seq_at(self, topic: str, position: str) -> int:
        """The sequence number at a position now. Raises HttpRequestError."""
        args = {"topic": topic, "from": position, "limit": "1"}
        reply = await self.send("GET", "/topic/messages", args)
        seq = reply.headers.get(_FIRST_SEQ_HEADER, "")
        if not seq.isdecimal():
            raise HttpRequestError(self.address, "unexpected response: it has no sequence number")
        return int(seq)

    async def seek(self, topic: str, channel: str, seq: int) -> None:
        """Moves a channel to a sequence number. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "to": str(seq)}
        await self.send("POST", "/channel/seek", args)

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
