"""How often the cluster is looked at."""

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
SEVERAL_LOOKS = 4 * 4  # requests
HTTP = HttpClient(connect_timeout_seconds=0.5, request_timeout_seconds=0.5)


def test_a_node_that_does_not_answer_makes_nobody_look_less_often() -> None:
    async def scene() -> None:
        async with scripted_server(ANSWER) as good, scripted_server(hangs=True) as hung:
            nsqds = (f"127.0.0.1:{good.port}", f"127.0.0.1:{hung.port}")
            log = Logger("", LogLevel.FATAL)
            watcher = Watcher(Cluster(HTTP, nsqds=nsqds), log, interval_seconds=0.01)
            watching = asyncio.create_task(watcher.run())
            # A look waits for 1.5 s: rests of 24 times that would take longer than this.
            async with asyncio.timeout(100):
                while len(good.requests) < SEVERAL_LOOKS:  # noqa: ASYNC110 (it tells nobody)
                    await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.wait([watching])

    uvloop.run(scene())
