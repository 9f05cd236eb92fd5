"""Polling intervals of the watcher."""

import asyncio

import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.admin_api.cluster import Cluster
from penstock.common.logs import Logger, LogLevel
from penstock.net.http_client.client import HttpClient
from penstock.nsqadmin.watcher import Watcher

ANSWER = (
    b"HTTP/1.1 200 OK\r\n\r\n"
    b'{"version":"1.3.0","broadcast_address":"a","hostname":"h","tcp_port":1,"http_port":2}'
)
SEVERAL_POLLS = 4 * 4  # requests
HTTP = HttpClient(connect_timeout_seconds=0.5, request_timeout_seconds=0.5)


def test_an_unresponsive_node_does_not_slow_down_polling() -> None:
    async def scene() -> None:
        async with scripted_server(ANSWER) as good, scripted_server(hangs=True) as hung:
            nsqds = (f"127.0.0.1:{good.port}", f"127.0.0.1:{hung.port}")
            log = Logger("", LogLevel.FATAL)
            watcher = Watcher(Cluster(HTTP, nsqds=nsqds), log, interval_seconds=0.01)
            watching = asyncio.create_task(watcher.run())
            # A poll takes 1.5 s: idle times of 24 times that would exceed this timeout.
            async with asyncio.timeout(100):
                while len(good.requests) < SEVERAL_POLLS:  # noqa: ASYNC110 (there is no event)
                    await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.wait([watching])

    uvloop.run(scene())
