"""Questions to a cluster in which not everybody answers."""

import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.net.http_client.client import HttpClient
from penstock.nsqadmin.cluster_client import Cluster

CHANNELS = b'HTTP/1.1 200 OK\r\n\r\n{"channels":["c"]}'
HTTP = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=2)


def test_who_did_not_answer_in_time_is_not_asked_again() -> None:
    async def scene() -> None:
        async with scripted_server(CHANNELS) as good, scripted_server(hangs=True) as hung:
            lookupds = (f"127.0.0.1:{good.port}", f"127.0.0.1:{hung.port}")
            inquiry = Cluster(HTTP, lookupds=lookupds).inquire()

            assert [["c"]] * 3 == [await inquiry.channels(topic) for topic in "abc"]
            assert (3, 1) == (len(good.requests), len(hung.requests))
            assert inquiry.warning.endswith(f"{hung.port}/channels: timed out")
            assert 1 == inquiry.warning.count("timed out")

    uvloop.run(scene())
