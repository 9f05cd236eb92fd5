"""The driver's copy of the nodes' catalogs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.spark.tables import http_addresses, publish

from penstock.common.errors import ConfigError, NotConnectedError
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until
from pyspark_nsq.catalog import ClusterCatalog
from pyspark_nsq.nodes import ClusterSnapshot, Nodes
from pyspark_nsq.options import SourceOptions


@contextmanager
def open_catalog(**options: str) -> Iterator[ClusterCatalog]:
    given = SourceOptions.parse({"topicPattern": "orders.*", **options}, streaming=True)
    catalog = ClusterCatalog(Nodes(given.access), given.topics)
    try:
        yield catalog
    finally:
        catalog.close()


def counts(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Number of messages by topic."""
    found: dict[str, int] = {}
    for key, located in snapshot.logs.items():
        size = located.log.high_watermark - located.log.first_seq
        found[key.topic] = found.get(key.topic, 0) + size
    return found


def requests(nsqd: NsqdProcess) -> int:
    """Number of requests to `/topics/log`; other requests are not sent in these tests."""
    lines = nsqd.http("GET", "/metrics").body.decode().splitlines()
    answered = [line for line in lines if line.startswith("nsqd_http_requests_total")]
    return sum(int(float(line.split()[-1])) for line in answered)


def test_a_snapshot_has_the_logs_of_all_nodes(nsqd: NsqdProcess, other_nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a", "b"])
    publish(other_nsqd, "orders", ["c"])
    publish(other_nsqd, "clicks", ["not wanted"])
    with open_catalog(nsqd=http_addresses(nsqd, other_nsqd)) as catalog:
        first = catalog.snapshot()
        assert {"orders": 3} == counts(first)
        publish(nsqd, "orders.eu", ["d"])
        wait_until(lambda: counts(catalog.snapshot()) == {"orders": 3, "orders.eu": 1}, "the topic")
        last = catalog.snapshot(fresh=True)

        assert last is catalog.snapshot(fresh=True)
        assert {1, 2} == {located.node_id for located in last.logs.values()}


def test_a_wait_ends_when_a_message_is_published(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    with open_catalog(nsqd=nsqd.http_address) as catalog:
        catalog.snapshot()
        known = catalog.snapshot(fresh=True)  # nothing new: the long poll is open from now on
        publish(nsqd, "orders", ["b"])
        catalog.wait_for_change(known, 60.0)

        assert {"orders": 2} == counts(catalog.snapshot())


def test_a_busy_node_is_not_asked_until_the_query_needs_it(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    with open_catalog(nsqd=nsqd.http_address) as catalog:
        assert {"orders": 1} == counts(catalog.snapshot())
        before = requests(nsqd)
        nsqd.publish("orders", *[b"x"] * 50)  # over TCP
        assert {"orders": 51} == counts(catalog.snapshot(fresh=True))

        # One for the catalog, and one for the metrics.
        assert 2 >= requests(nsqd) - before


def test_deleted_logs_are_reported_by_the_nsqd_that_had_them(nsqd: NsqdProcess) -> None:
    publish(nsqd, "orders", ["a"])
    publish(nsqd, "orders.eu", ["b"])
    with open_catalog(nsqd=nsqd.http_address) as catalog:
        old = {key.topic: key for key in catalog.snapshot().logs}
        nsqd.post("/topic/delete?topic=orders")
        nsqd.post("/topic/delete?topic=orders.eu")
        publish(nsqd, "orders", ["c", "d"])
        now = catalog.snapshot(fresh=True)

        assert {"orders": 2} == counts(now)
        assert {*old.values()} == now.deleted.keys()
        nsqd.kill()
        nsqd.restart()
    with open_catalog(nsqd=nsqd.http_address) as catalog:
        assert {} == catalog.snapshot().deleted


def test_a_node_that_fails_is_asked_again(nsqd: NsqdProcess) -> None:
    with run_nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with (
            run_nsqd(*flags) as mortal,
            open_catalog(nsqd=nsqd.http_address, lookupd=lookupd.http_address) as catalog,
        ):
            publish(nsqd, "orders", ["a"])
            publish(mortal, "orders", ["b"])
            wait_until(lambda: counts(catalog.snapshot()) == {"orders": 2}, "both nodes")
            mortal.kill()
            wait_until(lambda: counts(catalog.snapshot()) == {"orders": 1}, "the loss of a node")
            mortal.restart()
            wait_until(lambda: counts(catalog.snapshot()) == {"orders": 2}, "its return")
            assert () == catalog.snapshot().failures


def test_all_nodes_failing_is_reported(nsqd: NsqdProcess) -> None:
    with open_catalog(nsqd=nsqd.http_address) as catalog:
        nsqd.kill()
        wait_until(lambda: catalog.snapshot(fresh=True).failures, "the failure")
        with pytest.raises(NotConnectedError, match="refused"):
            catalog.snapshot().require_answer()


def test_an_nsqd_without_a_catalog_is_an_error() -> None:
    with (
        run_nsqlookupd() as daemon,  # answers 404, like an nsqd of an earlier version
        open_catalog(nsqd=daemon.http_address) as catalog,
        pytest.raises(ConfigError, match=r"no catalog of its logs: upgrade it to Penstock \d"),
    ):
        catalog.snapshot()
