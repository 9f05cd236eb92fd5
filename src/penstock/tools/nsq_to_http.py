"""nsq_to_http: a request for each message.

A message is finished when its request has been answered well: a POST by any 2xx, a GET by 200. If
not, it is requeued, and the consumer backs off.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote_plus

from penstock.client import Consumer, Message
from penstock.common.clock import SECOND_NS
from penstock.common.errors import HttpRequestError
from penstock.common.logs import Logger
from penstock.net.http_client.keep_alive import KeepAliveClient
from penstock.net.http_client.target import without_secrets
from penstock.tools.consumer_options import consumer_config
from penstock.tools.host_pool import EpsilonGreedy, HostPool, Pool, RoundRobin
from penstock.tools.http_options import HttpOptions, request_headers
from penstock.tools.runner import consume_all, run_tool
from penstock.tools.timings import Timings

__all__ = ["run"]

_POOLS: dict[str, Callable[[Sequence[str]], Pool]] = {
    "round-robin": RoundRobin,
    "hostpool": HostPool,
    "epsilon-greedy": EpsilonGreedy,
}


def run(options: HttpOptions, log: Logger) -> int:
    """Makes requests until it is told to stop."""
    return run_tool(lambda stop: _push(options, stop, log), log)


async def _push(options: HttpOptions, stop: asyncio.Event, log: Logger) -> int:
    consumer = Consumer(
        options.topic,
        options.channel,
        nsqd=options.nsqd_tcp_address,
        lookupd=options.lookupd_http_address,
        config=consumer_config("nsq_to_http", options),
    )
    push = _Push(options, log)
    try:
        await consume_all(
            [consumer], lambda each: each.run(push.handle, concurrency=options.n), stop
        )
    finally:
        push.close()
    return 0


class _Push:
    """Sends messages to one of the addresses, or to all."""

    def __init__(self, options: HttpOptions, log: Logger) -> None:
        self._addresses: Sequence[str] = tuple(dict.fromkeys(options.post or options.get))
        self._is_post = bool(options.post)
        self._headers = request_headers(options)
        self._sample = options.sample
        self._http = KeepAliveClient(
            connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
            request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
        )
        pool = _POOLS.get(options.mode)
        self._pool = pool(self._addresses) if pool is not None else None
        self._all_timings = Timings("aggregate", options.status_every, log)
        # Where there is one address, its times are those of all.
        every = options.status_every if len(self._addresses) > 1 else 0
        self._timings = {
            each: Timings(without_secrets(each), every, log) for each in self._addresses
        }

    async def handle(self, message: Message) -> None:
        """What it raises makes the consumer requeue the message, and back off."""
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
        """There are no more messages."""
        self._http.close()

    async def _send_to_one(self, pool: Pool, body: bytes, began: float) -> None:
        address = pool.pick(began)
        try:
            await self._send(address, body)
        except HttpRequestError:
            pool.mark(address, time.monotonic(), 0, failed=True)
            raise
        ended = time.monotonic()
        pool.mark(address, ended, ended - began)

    async def _send(self, address: str, body: bytes) -> None:
        """Raises HttpRequestError if it is not answered well."""
        began = time.monotonic()
        if self._is_post:
            reply = await self._http.fetch("POST", address, headers=self._headers, body=body)
            is_good = 200 <= reply.status < 300
        else:
            url = address.replace("%s", quote_plus(body))
            reply = await self._http.fetch("GET", url, headers=self._headers)
            is_good = reply.status == 200
        if not is_good:
            shown, reason = without_secrets(address), f"got status code {reply.status}"
            raise HttpRequestError(shown, reason, status=reply.status)
        self._timings[address].add(time.monotonic() - began)
