"""Discovery of nsqds through nsqlookupd.

Penstock's nsqlookupd supports long polling: it holds the response to `wait` until the nodes change,
and returns an `X-Penstock-Index`, which the next request repeats. Other nsqlookupds are polled.
After a connection to an nsqd is lost, they are polled more often for a while: another member of a
replicated node may take over. If an nsqlookupd fails, its last response stays valid.
"""

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from penstock.admin_api.lookupd_api import registered_nodes
from penstock.admin_api.models import RegisteredNode
from penstock.client.config import ClientConfig
from penstock.common.addresses import PORT_MAX
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import ACCEPT_V1, HttpReply

__all__ = [
    "ALL_NODES",
    "Discovery",
    "PollPauses",
    "lookup_path",
    "parse_tcp_addresses",
    "request_headers",
]

log = logging.getLogger("penstock.client")

ALL_NODES = "/nodes?for=producer"
"""Path for producers, which may use any nsqd: publishing creates the topic."""

INDEX_HEADER = "x-penstock-index"

# A valid broadcast address: on one line, and not the path of a unix socket.
_HOST = re.compile(r"[^\s/]+")

# A response that took this long was held by nsqlookupd.
HELD_SECONDS_MIN = 1.0

# Delay before the first fast poll, and the factor of each further delay.
FAST_PAUSE_SECONDS = 0.5
PAUSE_GROWTH = 1.5

# Delay between long polls, which limits the rate if nodes change all the time.
PAUSE_SECONDS = 0.1


def lookup_path(topic: str) -> str:
    """Path for consumers: the nsqds that have the topic."""
    return f"/lookup?topic={quote(topic)}"


class Discovery:
    """Requests `path` from each nsqlookupd and merges the responses."""

    def __init__(self, lookupds: Sequence[str], path: str, config: ClientConfig) -> None:
        """`lookupds` are base URLs."""
        self._pollers = [_Poller(each, path, config) for each in lookupds]

    async def ask_once(self) -> set[str]:
        """Asks each nsqlookupd once. Raises NotConnectedError if all fail."""
        outcomes = await asyncio.gather(*map(_failure_of, self._pollers))
        failures = [failure for failure in outcomes if failure is not None]
        if len(failures) == len(self._pollers):
            raise NotConnectedError("no nsqlookupd answered: " + "; ".join(map(str, failures)))
        for failure in failures:
            log.warning("%s", failure)
        return self._found()

    async def run(self, found: Callable[[set[str]], None]) -> None:
        """Polls until cancelled, and calls `found` after every response."""
        async with asyncio.TaskGroup() as tasks:
            for poller in self._pollers:
                tasks.create_task(poller.run(lambda: found(self._found())))

    def poll_soon(self, *, again: bool) -> None:
        """Poll more often for a while. Without `again`, has an effect only once."""
        for poller in self._pollers:
            poller.poll_soon(again=again)

    def _found(self) -> set[str]:
        return set().union(*(poller.addresses for poller in self._pollers))


class PollPauses:
    """Pauses between polls: `interval_seconds`, or shorter ones that grow up to that."""

    def __init__(self, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._next_seconds = interval_seconds
        self._was_shortened = False

    def shorten(self, *, again: bool = True) -> bool:
        """Make the next pause the shortest one. If `again` is False, only the first call has an
        effect. Returns whether the call had an effect."""
        if self._was_shortened and not again:
            return False
        self._was_shortened = True
        self._next_seconds = min(FAST_PAUSE_SECONDS, self.interval_seconds)
        return True

    def next_seconds(self) -> float:
        """The next pause in seconds. Each call makes the following pause longer."""
        seconds = self._next_seconds
        self._next_seconds = min(seconds * PAUSE_GROWTH, self.interval_seconds)
        return seconds


class _Poller:
    """Polls one nsqlookupd."""

    def __init__(self, base_url: str, path: str, config: ClientConfig) -> None:
        self.addresses: frozenset[str] = frozenset()
        self._url = base_url + path
        self._config = config
        self._supports_wait = not path.startswith("/nodes")
        self._index = ""
        self._holds_answers = False
        self._pauses = PollPauses(config.lookupd_poll_interval)
        self._is_hurried = asyncio.Event()
        self._http = HttpClient(
            connect_timeout_seconds=config.dial_timeout,
            request_timeout_seconds=config.lookupd_poll_timeout,
        )

    async def run(self, answered: Callable[[], None]) -> None:
        while True:
            await self._pause()
            try:
                await self.ask()
            except HttpRequestError as failure:
                log.warning("%s", failure)
                self._index, self._holds_answers = "", False
            else:
                answered()

    async def ask(self) -> None:
        """Send one request to nsqlookupd, and update `addresses`. Raises HttpRequestError."""
        began, asked_index = time.monotonic(), self._index
        headers = request_headers(self._config)
        reply = await self._http.fetch("GET", self._url + self._wait_args(), headers=headers)
        self.addresses = parse_tcp_addresses(self._url, reply)
        self._index = reply.headers.get(INDEX_HEADER, "") if self._supports_wait else ""
        # If nsqlookupd has too many waiting clients, it repeats its response at once: then poll.
        has_changed = self._index != asked_index
        was_held = time.monotonic() - began >= HELD_SECONDS_MIN
        self._holds_answers = bool(self._index) and (has_changed or was_held)

    def _wait_args(self) -> str:
        if not self._supports_wait:
            return ""
        if not self._index:
            return "&wait=0s"
        return f"&wait={self._config.lookupd_poll_timeout / 2:g}s&index={quote(self._index)}"

    def poll_soon(self, *, again: bool) -> None:
        if self._pauses.shorten(again=again):
            self._is_hurried.set()

    async def _pause(self) -> None:
        if self._holds_answers:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        self._is_hurried.clear()
        jitter = self._config.lookupd_poll_jitter * random.random()  # noqa: S311 (no secret)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pauses.next_seconds() * (1 + jitter)):
                await self._is_hurried.wait()
            await asyncio.sleep(self._pauses.next_seconds() * (1 + jitter))


def request_headers(config: ClientConfig) -> list[tuple[str, str]]:
    """Headers of every request to nsqlookupd."""
    headers = [ACCEPT_V1]
    if config.auth_secret and not config.skip_lookupd_authorization:
        headers.append(("Authorization", f"Bearer {config.auth_secret}"))
    return headers


def parse_tcp_addresses(url: str, reply: HttpReply) -> frozenset[str]:
    """TCP addresses of the nsqds in nsqlookupd's response; empty if it does not know the topic.
    Raises HttpRequestError if the response is not from nsqlookupd."""
    return frozenset(_tcp_addresses(url, registered_nodes(url, reply)))


async def _failure_of(poller: _Poller) -> HttpRequestError | None:
    try:
        await poller.ask()
    except HttpRequestError as failure:
        return failure
    return None


def _tcp_addresses(url: str, nodes: list[RegisteredNode]) -> Iterator[str]:
    """Skips nodes that registered an invalid address, with a warning."""
    for node in nodes:
        if _HOST.fullmatch(node.broadcast_address) and 0 < node.tcp_port <= PORT_MAX:
            yield node.tcp_address
        else:
            log.warning("%s: not an address (host:port): %r", url, node.tcp_address)
