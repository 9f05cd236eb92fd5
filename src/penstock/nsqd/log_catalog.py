"""The catalog of all topic logs, for clients that follow many topics with one request per node.

A response contains the logs that have changed since an earlier response of the same nsqd process,
which the client identifies by its `version`. A client that applies each response to its copy always
has the state of a full response:

    copy = {} if response.full else copy
    copy.update({each.topic: each for each in response.topics})
    for name in response.removed: copy.pop(name, None)

Every request compares all topics with the state last seen, so that no change can be missed. If
nothing has changed, the request can wait: each topic then notifies the catalog of its next change.
While no request waits, the catalog costs at most one call per topic.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.topic import Topic
from penstock.net.http_server import DeferredResponse, Response, json_response
from penstock.nsqd.http_args import not_confirmed, too_many_readers

__all__ = ["REMOVED_MAX", "WAITING_MAX", "LogCatalog"]

WAITING_MAX = 128

# Number of deleted topics that are remembered. After more deletions, a response is full.
REMOVED_MAX = 1000

# Waiting requests get the changes of this time together, so that a busy topic does not cost one
# response per publish.
_COALESCE_SECONDS = 0.01


class CatalogTopic(msgspec.Struct, gc=False):
    """The log of one topic, with the messages from `first_seq` to `next_seq` - 1. Consumers may
    read those below `high_watermark`."""

    topic: str
    log_id: str
    first_seq: int
    next_seq: int
    high_watermark: int
    bytes: int


class CatalogResponse(msgspec.Struct, gc=False):
    """The logs that have changed, or all logs if `full`."""

    node_id: int
    version: str
    full: bool
    topics: list[CatalogTopic]
    removed: list[str]


@dataclass(slots=True)
class _LogState:
    """The state of a log when it was last seen to have changed."""

    topic: CatalogTopic
    trimmed_bytes: int
    version: int


class WaitingRequest(DeferredResponse):
    """A request that waits for changes after `version`."""

    def __init__(
        self, version: int, seconds: float, answer: Callable[["WaitingRequest"], None]
    ) -> None:
        """`answer` is called after this time, or when the client has disconnected."""
        self.version = version
        self.timeout = asyncio.get_running_loop().call_later(seconds, answer, self)
        self._answer = answer

    def on_client_ended(self) -> None:
        self._answer(self)


class LogCatalog:
    """Tracks the changes of the logs of all persistent topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._run_id = secrets.token_hex(8)  # Tokens of another nsqd process are unknown here.
        self._version = 0
        # The change of the greatest version is the last one in each of these.
        self._entries: dict[str, _LogState] = {}
        self._removed: dict[str, int] = {}
        self._oldest_version = 0
        """Deletions up to this version may have been forgotten."""
        self._waiting: set[WaitingRequest] = set()
        self._unwatched: set[str] = set()
        """Names of the topics that would not notify the catalog of a change."""
        self._answer_timer: asyncio.TimerHandle | None = None
        self._is_confirmed = False
        """Whether all messages of earlier runs are confirmed, which stays so."""
        self._is_closed = False

    def respond(self, token: str, wait_seconds: float = 0) -> Response | DeferredResponse:
        """The changes since the response with this token; all topics if the token is unknown. If
        nothing has changed, the response is sent after the next change, or when the time is over.

        Raises HttpError 503 as long as messages of earlier runs are not confirmed: the catalog
        would end before messages that a client may have read from another member.
        """
        if not self._is_confirmed:
            self._check_confirmed()
        self._refresh()
        since = self._maybe_version(token)
        if since != self._version or not wait_seconds or self._is_closed:
            return self._response(since)
        if len(self._waiting) >= WAITING_MAX:
            return too_many_readers()
        request = WaitingRequest(self._version, wait_seconds, self._answer_one)
        self._waiting.add(request)
        self._watch_topics()
        return request

    def on_change(self) -> None:
        """Called when a topic is created: requests that wait are answered soon."""
        if self._waiting and self._answer_timer is None:
            loop = asyncio.get_running_loop()
            self._answer_timer = loop.call_later(_COALESCE_SECONDS, self._answer_changed)

    def end_waits(self) -> None:
        """Answers all requests that wait."""
        self._refresh()
        self._answer(self._waiting)

    def close(self) -> None:
        """Answers all requests that wait, and all later ones at once."""
        self._is_closed = True
        self.end_waits()

    def _check_confirmed(self) -> None:
        stores = (topic.store for topic in self._broker.topics.values())
        if any(store is not None and store.log.awaits_confirmation for store in stores):
            raise not_confirmed()
        self._is_confirmed = True

    def _answer_one(self, request: WaitingRequest) -> None:
        self._refresh()
        self._answer({request})

    def _answer_changed(self) -> None:
        self._answer_timer = None
        self._refresh()
        self._answer({each for each in self._waiting if each.version != self._version})
        if self._waiting:
            self._watch_topics()

    def _answer(self, requests: set[WaitingRequest]) -> None:
        self._waiting = self._waiting - requests
        responses: dict[int, Response] = {}
        for request in requests:
            request.timeout.cancel()
            response = responses.get(request.version)
            if response is None:
                response = responses[request.version] = self._response(request.version)
            request.resolve(response)

    def _watch_topics(self) -> None:
        topics = self._broker.topics
        for name in self._unwatched:
            if (topic := topics.get(name)) is not None:
                topic.call_on_next_change(partial(self._on_topic_change, name))
        self._unwatched.clear()

    def _on_topic_change(self, name: str) -> None:
        self._unwatched.add(name)
        self.on_change()

    def _response(self, since: int | None) -> Response:
        """The changes after a version; all topics if `since` is None or too old."""
        if since is None or since < self._oldest_version:
            topics = [entry.topic for entry in self._entries.values()]
            return self._encode(topics, [], full=True)
        topics, removed = [], []
        for entry in reversed(self._entries.values()):
            if entry.version <= since:
                break
            topics.append(entry.topic)
        for name, version in reversed(self._removed.items()):
            if version <= since:
                break
            removed.append(name)
        return self._encode(topics, removed, full=False)

    def _encode(self, topics: list[CatalogTopic], removed: list[str], *, full: bool) -> Response:
        token = f"{self._run_id}-{self._version}"
        body = CatalogResponse(self._broker.node_id, token, full, topics, removed)
        return json_response(200, msgspec.json.encode(body))

    def _maybe_version(self, token: str) -> int | None:
        """The version in a token; None if this process has not issued the token."""
        run_id, _, text = token.partition("-")
        if run_id != self._run_id or not (text.isascii() and text.isdecimal()) or len(text) > 18:
            return None
        version = int(text)
        return version if version <= self._version else None

    def _refresh(self) -> None:
        """Compares all topics with their entries, and records the changes as a new version."""
        topics, entries = self._broker.topics, self._entries
        changed: list[Topic] = []
        count = 0
        for name, topic in topics.items():
            if topic.store is None:
                continue  # An ephemeral topic has no log.
            count += 1
            log, entry = topic.store.log, entries.get(name)
            if (
                entry is None
                or entry.topic.high_watermark != log.high_watermark
                or entry.topic.first_seq != log.first_seq
                or entry.trimmed_bytes != log.trimmed_bytes
                or entry.topic.log_id != log.log_id
            ):
                changed.append(topic)
        if not changed and count == len(entries):
            return
        self._version += 1
        for topic in changed:
            self._record_change(topic)
        if len(entries) > count:
            for name in [name for name in entries if name not in topics]:
                del entries[name]
                self._removed[name] = self._version
            self._forget_removed()
        self.on_change()

    def _record_change(self, topic: Topic) -> None:
        assert topic.store is not None
        name, log = topic.name, topic.store.log
        if self._entries.pop(name, None) is None:
            self._removed.pop(name, None)
            self._unwatched.add(name)
        row = CatalogTopic(
            topic=name,
            log_id=log.log_id,
            first_seq=log.first_seq,
            next_seq=log.next_seq,
            high_watermark=log.high_watermark,
            bytes=log.byte_size,
        )
        self._entries[name] = _LogState(row, log.trimmed_bytes, self._version)

    def _forget_removed(self) -> None:
        while len(self._removed) > REMOVED_MAX:
            name = next(iter(self._removed))
            self._oldest_version = self._removed.pop(name)
