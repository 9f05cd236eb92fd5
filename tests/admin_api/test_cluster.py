"""Queries to a cluster in which some daemons fail, and the order of versions."""

import uvloop
from tests.net.http_client.scripted_server import scripted_server

from penstock.admin_api.cluster import Cluster, parse_version
from penstock.net.http_client.client import HttpClient

CHANNELS = b'HTTP/1.1 200 OK\r\n\r\n{"channels":["c"]}'
HTTP = HttpClient(connect_timeout_seconds=60, request_timeout_seconds=2)


def test_a_daemon_that_timed_out_is_not_asked_again() -> None:
    async def scene() -> None:
        async with scripted_server(CHANNELS) as good, scripted_server(hangs=True) as hung:
            lookupds = (f"127.0.0.1:{good.port}", f"127.0.0.1:{hung.port}")
            query = Cluster(HTTP, lookupds=lookupds).new_query()

            assert [["c"]] * 3 == [await query.channels(topic) for topic in "abc"]
            assert (3, 1) == (len(good.requests), len(hung.requests))
            assert query.warning.endswith(f"{hung.port}/channels: timed out")
            assert 1 == query.warning.count("timed out")

    uvloop.run(scene())


def test_versions_are_ordered_by_number_and_prereleases_come_first() -> None:
    shuffled = ["1.10.0", "1.3.0", "unknown", "1.3.0-alpha", "0.2.29"]

    assert ["unknown", "0.2.29", "1.3.0-alpha", "1.3.0", "1.10.0"] == sorted(
        shuffled, key=parse_version
    )
