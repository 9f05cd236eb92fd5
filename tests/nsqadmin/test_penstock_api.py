"""What a node shows of its messages, and nodes that show nonsense."""

from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.admin_api.cluster import Cluster
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.nsqadmin.penstock_api import PenstockApi

HTTP = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=60)
MESSAGE = b'{"seq":1,"id":"0000000000000001","timestamp_ns":1,"body":"b"}\n'


@pytest.mark.parametrize(
    "ask",
    [
        lambda nodes, at: nodes.history(at, "t", "earliest", 10),
        lambda nodes, at: nodes.search(at, "t", "earliest", "x", 10),
        lambda nodes, at: nodes.peek(at, "t", "c", "queued", 10),
    ],
    ids=["history", "search", "peek"],
)
@pytest.mark.parametrize(
    "line", [b"<html>", b'{"seq":1}', MESSAGE.replace(b'"b"', b'"\xff"')], ids=repr
)
def test_what_is_no_message_is_told_with_the_node(
    ask: Callable[[PenstockApi, str], Awaitable[object]], line: bytes
) -> None:
    async def scene() -> None:
        async with scripted_server(b"HTTP/1.1 200 OK\r\n\r\n" + MESSAGE + line) as server:
            await ask(PenstockApi(Cluster(HTTP)), f"127.0.0.1:{server.port}")

    with pytest.raises(HttpRequestError, match=r"127\.0\.0\.1:\d+: unexpected response: "):
        uvloop.run(scene())
