"""nsq_to_http: send an HTTP request for each message.

A message is finished if the response is a success: any 2xx for POST, 200 for GET. Otherwise it is
requeued and the consumer backs off. Flags and defaults are NSQ's.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus, urlsplit

from penstock import NSQ_VERSION
from penstock.client import Consumer, Message
from penstock.common import names
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import ConfigError, HttpRequestError
from penstock.common.logs import Logger
from penstock.common.option_types import DURATION, FLOAT, INT, STRING, STRINGS
from penstock.common.options import option
from penstock.net.http_client.client import HttpClient
from penstock.net.http_client.messages import without_secrets
from penstock.tools.consumer_options import ConsumerOptions, check_source, consumer_config
from penstock.tools.host_pool import (
    EpsilonGreedy,
    HostPool,
    HostSelector,
    RequestTimings,
    RoundRobin,
)
from penstock.tools.runner import consume_all, run_tool

__all__ = ["NsqToHttpOptions", "check", "request_headers", "run"]

CONTENT_TYPE = "application/octet-stream"

_HEADER = re.compile(r"\s*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)\s*:\s*([\t -~]*?)\s*")

# The HTTP client sets these headers itself.
_RESERVED_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToHttpOptions(ConsumerOptions):
    """The options of nsq_to_http."""

    topic: str = option("", STRING, "topic to consume", key=None)
    channel: str = option("nsq_to_http", STRING, "channel to consume", key=None)
    n: int = option(100, INT, "maximum number of concurrent requests", key=None, at_least=1)
    mode: str = option(
        "hostpool",
        STRING,
        "choice of the address: round-robin, hostpool (skips failing ones) or epsilon-greedy"
        " (also prefers fast ones); any other word sends each message to all addresses",
        key=None,
    )
    sample: float = option(
        1.0,
        FLOAT,
        "fraction of the messages to send, from 0 to 1; the others are finished",
        key=None,
        at_least=0.0,
        at_most=1.0,
    )
    post: tuple[str, ...] = option(
        (), STRINGS, "URL for POST requests with the message as body", key=None
    )
    get: tuple[str, ...] = option(
        (), STRINGS, "URL for GET requests; %s is replaced by the escaped message", key=None
    )
    header: tuple[str, ...] = option(
        (), STRINGS, "additional header of each request: Key: Value", key=None
    )
    content_type: str = option(CONTENT_TYPE, STRING, "Content-Type of POST requests", key=None)
    status_every: int = option(
        250,
        INT,
        "number of requests between log lines with their durations; 0 for no such lines",
        key=None,
        at_least=0,
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS, DURATION, "timeout of connecting", key=None, at_least=MILLISECOND_NS
    )
    http_client_request_timeout_ns: int = option(
        20 * SECOND_NS, DURATION, "timeout of a request", key=None, at_least=MILLISECOND_NS
    )


def check(options: NsqToHttpOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    if not options.topic or not options.channel:
        raise ConfigError("--topic and --channel are required")
    if not names.is_valid(options.topic):
        raise ConfigError("--topic is invalid")
    if not names.is_valid(options.channel):
        raise ConfigError("--channel is invalid")
    if options.content_type != CONTENT_TYPE and not options.post:
        raise ConfigError("--content-type only used with --post")
    if not options.content_type:
        raise ConfigError("--content-type requires a value when used")
    check_source(options)
    if not options.get and not options.post:
        raise ConfigError("--get or --post required")
    if options.get and options.post:
        raise ConfigError("use --get or --post not both")
    if any(url.count("%s") != 1 for url in options.get):
        raise ConfigError("invalid GET address - must be a printf string")
    for url in (*options.post, *options.get):
        _check_url(url)
    request_headers(options)


def request_headers(options: NsqToHttpOptions) -> tuple[tuple[str, str], ...]:
    """The headers of every request. Raises ConfigError."""
    headers = {"user-agent": ("User-Agent", f"nsq_to_http v{NSQ_VERSION}")}
    if options.post:
        headers["content-type"] = ("Content-Type", options.content_type)
    for header in options.header:
        parts = _HEADER.fullmatch(header)
        if parts is None:
            raise ConfigError(f"--header must be 'Key: Value', not {header!r}")
        name, value = parts.groups()
        if name.lower() in _RESERVED_HEADERS:
            raise ConfigError(f"--header {name} is not allowed: nsq_to_http sets it")
        headers[name.lower()] = (name, value)
    return tuple(headers.values())


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_success = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_success = False
    if not is_success or not url.isascii() or re.search(r"[\x00-\x20\x7f]", url):
        raise ConfigError(f"not an http:// or https:// URL: {url!r}")


_POOLS: dict[str, Callable[[Sequence[str]], HostSelector]] = {
    "round-robin": RoundRobin,
    "hostpool": HostPool,
    "epsilon-greedy": EpsilonGreedy,
}


def run(options: NsqToHttpOptions, log: Logger) -> int:
    """Send requests until a signal stops it."""
    return run_tool(lambda stop: _run(options, stop, log), log)


async def _run(options: NsqToHttpOptions, stop: asyncio.Event, log: Logger) -> int:
    consumer = Consumer(
        options.topic,
        options.channel,
        nsqd=options.nsqd_tcp_address,
        lookupd=options.lookupd_http_address,
        config=consumer_config("nsq_to_http", options),
    )
    sender = _Sender(options, log)
    try:
        await consume_all(
            [consumer], lambda each: each.run(sender.send, concurrency=options.n), stop
        )
    finally:
        sender.close()
    return 0


class _Sender:
    """Sends messages to one of the addresses, or to all."""

    def __init__(self, options: NsqToHttpOptions, log: Logger) -> None:
        self._addresses: Sequence[str] = tuple(dict.fromkeys(options.post or options.get))
        self._is_post = bool(options.post)
        self._headers = request_headers(options)
        self._sample = options.sample
        self._http = HttpClient(
            connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
            request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
            keep_alive=True,
            idle_per_server_max=options.n,
            repeats_posts=True,  # a failure would requeue the message and send it again, too
        )
        pool = _POOLS.get(options.mode)
        self._pool = pool(self._addresses) if pool is not None else None
        self._all_timings = RequestTimings("aggregate", options.status_every, log)
        # With a single address, its line would repeat the aggregate.
        every = options.status_every if len(self._addresses) > 1 else 0
        self._timings = {
            each: RequestTimings(without_secrets(each), every, log) for each in self._addresses
        }

    async def send(self, message: Message) -> None:
        """Send a message. If this raises, the consumer requeues it and backs off."""
        if self._sample < 1 and random.random() >= self._sample:  # noqa: S311 (no secret)
            return
        began = time.monotonic()
        if self._pool is None:
            for address in self._addresses:
                await self._send(address, message.body)
        else:
            await self._send_to_one(self._pool, message.body, began)
        self._all_timings.add(time.monotonic() - began)

    def close(self) -> None:
        self._http.close()

    async def _send_to_one(self, pool: HostSelector, body: bytes, began: float) -> None:
        address = pool.pick(began)
        try:
            await self._send(address, body)
        except HttpRequestError:
            pool.mark(address, time.monotonic(), 0, failed=True)
            raise
        ended = time.monotonic()
        pool.mark(address, ended, ended - began)

    async def _send(self, address: str, body: bytes) -> None:
        """Raises HttpRequestError if the response is not a success."""
        began = time.monotonic()
        if self._is_post:
            reply = await self._http.fetch("POST", address, headers=self._headers, body=body)
            is_success = 200 <= reply.status < 300
        else:
            url = address.replace("%s", quote_plus(body))
            reply = await self._http.fetch("GET", url, headers=self._headers)
            is_success = reply.status == 200
        if not is_success:
            shown, reason = without_secrets(address), f"got status code {reply.status}"
            raise HttpRequestError(shown, reason, status=reply.status)
        self._timings[address].add(time.monotonic() - began)
