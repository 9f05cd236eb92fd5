"""What one nsqd is asked over HTTP beside its figures: history, places in it, and draining.

A refusal is told in words, as an HttpRequestError that names the node.
"""

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import urlencode

import msgspec

from penstock.admin_api.stats import base_url
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.common.json_decode import decode_json
from penstock.net.http_client.client import HttpClient, HttpReply

__all__ = ["LogExtent", "NsqdApi", "Segment", "absolute_place", "is_seq", "refusal", "url_of"]

_FIRST_SEQ_HEADER = "x-penstock-first-seq"
_SEQ_LIMIT = 1 << 54  # a larger number is a time
_PLACE = re.compile(r"earliest|latest|[0-9]+")

_IN_WORDS = {
    "TOPIC_NOT_FOUND": "there is no topic {topic}",
    "CHANNEL_NOT_FOUND": "there is no channel {channel} of {topic}",
    "INVALID_TOPIC": "{topic} is no name for a topic",
    "INVALID_ARG_TOPIC": "{topic} is no name for a topic",
    "INVALID_ARG_CHANNEL": "{channel} is no name for a channel",
    "TOPIC_IS_EPHEMERAL": "{topic} is ephemeral, and has no history",
    "CHANNEL_IS_EPHEMERAL": "{channel} is ephemeral, and has no place to be moved to",
    "SEQ_GONE": "that message is gone; the next one that is there is {first_seq}",
    "SEQ_TOO_HIGH": "there is no such message yet; the next one will be {next_seq}",
    "INVALID_RANGE": "the range ends before it begins",
    "INVALID_ARG_FROM": "{from} is no place in a log",
    "INVALID_ARG_TO": "{to} is no place in a log, or none that can be followed to",
    "TOO_MANY_READERS": "too many are reading history just now; try again",
    "MESSAGE_NOT_FOUND": "that message is not there any more",
    "CLIENT_NOT_FOUND": "there is no such client any more",
    "CLIENT_NOT_UNIQUE": "there are several such clients",
    "NOT_FOUND": "this nsqd keeps no history: it is not Penstock's",
    "UNAUTHORIZED": "a token is needed: --token",
    "FORBIDDEN": "the token does not allow that",
}


class Segment(msgspec.Struct, frozen=True):
    """A run of messages without a gap; `next_seq` is the one after the last."""

    first_seq: int
    next_seq: int


class LogExtent(msgspec.Struct, frozen=True):
    """What there is of a topic on one node."""

    first_seq: int
    next_seq: int
    segments: list[Segment]

    def count_from(self, seq: int) -> int:
        """How many messages there are from this one on."""
        return sum(max(each.next_seq - max(each.first_seq, seq), 0) for each in self.segments)


class NsqdApi:
    """One nsqd."""

    def __init__(
        self, http: HttpClient, address: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.address = address
        self._http = http
        self._headers = tuple(headers)

    async def log_of(self, topic: str) -> LogExtent:
        """How far a topic reaches. Raises HttpRequestError."""
        args = {"topic": topic}
        reply = await self._ask("GET", "/topic/log", args)
        try:
            return decode_json(reply.body, LogExtent)
        except ValueError as error:
            raise HttpRequestError(self.address, f"unexpected answer: {error}") from None

    async def seq_of(self, topic: str, place: str) -> int:
        """The sequence number that a place means now. Raises HttpRequestError."""
        args = {"topic": topic, "from": place, "limit": "1"}
        reply = await self._ask("GET", "/topic/messages", args)
        seq = reply.headers.get(_FIRST_SEQ_HEADER, "")
        if not seq.isdecimal():
            raise HttpRequestError(self.address, "unexpected answer: it has no sequence number")
        return int(seq)

    async def seek(self, topic: str, channel: str, seq: int) -> None:
        """Moves a channel there. Raises HttpRequestError."""
        args = {"topic": topic, "channel": channel, "to": str(seq)}
        await self._ask("POST", "/channel/seek", args)

    async def drain(self) -> None:
        """Begins to drain it. Raises HttpRequestError."""
        await self._ask("POST", "/drain", {})

    async def _ask(self, method: str, path: str, args: Mapping[str, str]) -> HttpReply:
        url = url_of(self.address, path, args)
        reply = await self._http.ask(method, url, headers=self._headers)
        if reply.status != 200:
            raise refusal(self.address, reply.status, reply.body, args)
        return reply


def url_of(address: str, path: str, args: Mapping[str, str]) -> str:
    """What is asked for."""
    return f"{base_url(address)}{path}" + (f"?{urlencode(args)}" if args else "")


def refusal(address: str, status: int, body: bytes, args: Mapping[str, str]) -> HttpRequestError:
    """What nsqd has said, in words."""
    try:
        said = decode_json(body, dict[str, object])
    except ValueError:
        said = {}
    code = str(said.get("message", ""))
    if code in _IN_WORDS:
        # Who says so need not be an nsqd, and may not say all that one would.
        words = _IN_WORDS[code].format_map(defaultdict(lambda: "?", {**args, **said}))
    else:
        words = f"it answered {status} {code or body[:200].decode(errors='replace')!r}"
    return HttpRequestError(address, words, status=status)


def absolute_place(text: str) -> str:
    """A place in a log as nsqd takes it: a duration means so long ago. Raises ConfigError."""
    if _PLACE.fullmatch(text) or _is_time(text):
        return text
    try:
        ago_ns = parse_duration(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is no place in a log: earliest, latest, a sequence number,"
            " a time such as 2026-11-15T08:00:00Z, or how long ago, such as 15m"
        ) from None
    return str(max(time.time_ns() - abs(ago_ns), _SEQ_LIMIT))


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.upper()).tzinfo is not None
    except ValueError:
        return False


def is_seq(place: str) -> bool:
    """Whether this is a sequence number, which means something on one node only."""
    return place.isdecimal() and int(place) < _SEQ_LIMIT
