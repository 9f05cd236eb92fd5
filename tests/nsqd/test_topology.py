"""Delivery to near consumers, and its counts in /stats."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until

EXPERIMENT = "--enable-experiment=topology-aware-consumption"
PLACE = ("--topology-zone=z1", "--topology-region=r1")

LOCALITY_KEYS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd(EXPERIMENT, *PLACE) as process:
        yield process


@pytest.fixture(scope="module")
def impartial() -> Iterator[NsqdProcess]:
    """An nsqd that knows its zone and region, without preferring consumers."""
    with run_nsqd("--enable-experiment=warp-drive", *PLACE, "--mem-queue-size=2") as process:
        yield process


def consumer_in(
    nsqd: NsqdProcess, topic: str, zone: str, region: str, *, rdy: int = 0
) -> RawClient:
    consumer = nsqd.connect()
    consumer.identify(client_id=zone, topology_zone=zone, topology_region=region)
    consumer.subscribe(topic, "c", rdy=rdy)
    return consumer


def are_ready(nsqd: NsqdProcess, topic: str, rdy_by_zone: dict[str, int]) -> bool:
    clients = nsqd.stats(topic, "c")["clients"]
    return rdy_by_zone == {each["client_id"]: each["ready_count"] for each in clients}


def locality(stats: dict[str, Any]) -> dict[str, int]:
    """The locality counts that are present."""
    return {key: stats[key] for key in LOCALITY_KEYS if key in stats}


def keys_after(stats: dict[str, Any], key: str, count: int) -> list[str]:
    keys = list(stats)
    return keys[keys.index(key) + 1 :][:count]


def test_the_same_zone_is_preferred_then_the_same_region(nsqd: NsqdProcess, topic: str) -> None:
    far = consumer_in(nsqd, topic, "z3", "r3", rdy=10)
    middle = consumer_in(nsqd, topic, "z2", "r1", rdy=3)
    near = consumer_in(nsqd, topic, "z1", "r1", rdy=2)
    wait_until(lambda: are_ready(nsqd, topic, {"z1": 2, "z2": 3, "z3": 10}), "three RDYs")
    for number in range(9):
        nsqd.publish(topic, b"%d" % number)

    assert [b"0", b"1"] == [message.body for message in near.messages(2)]
    assert [b"2", b"3", b"4"] == [message.body for message in middle.messages(3)]
    assert [b"5", b"6", b"7", b"8"] == [message.body for message in far.messages(4)]


def test_deliveries_are_counted_by_zone_region_and_global(nsqd: NsqdProcess, topic: str) -> None:
    consumers = [
        consumer_in(nsqd, topic, "z1", "", rdy=1),
        consumer_in(nsqd, topic, "z2", "r1", rdy=2),
        consumer_in(nsqd, topic, "", "", rdy=5),
    ]
    wait_until(lambda: are_ready(nsqd, topic, {"z1": 1, "z2": 2, "": 5}), "three RDYs")
    nsqd.publish(topic, b"a", b"b", b"c", b"d", b"e", b"f")
    for consumer, count in zip(consumers, (1, 2, 3), strict=True):
        consumer.messages(count)

    channel = nsqd.stats(topic, "c")
    assert dict(zip(LOCALITY_KEYS, (1, 2, 3), strict=True)) == locality(channel)
    assert [*LOCALITY_KEYS, "requeue_count"] == keys_after(channel, "message_count", 4)
    assert [
        {"zone_local_msg_count": 1},
        {"region_local_msg_count": 2},
        {"global_msg_count": 3},
    ] == [locality(client) for client in channel["clients"]]
    assert ["zone_local_msg_count", "finish_count"] == keys_after(
        channel["clients"][0], "message_count", 2
    )
    metrics = nsqd.http("GET", "/metrics").body.decode()
    assert [("zone", "1"), ("region", "2"), ("global", "3")] == re.findall(
        rf'^nsqd_channel_deliveries_total{{topic="{topic}",channel="c",locality="(\w+)"}} (\d+)$',
        metrics,
        re.MULTILINE,
    )


def test_zero_counts_are_omitted(nsqd: NsqdProcess, topic: str) -> None:
    consumer_in(nsqd, topic, "z1", "r1")
    nsqd.publish(topic, b"a")

    channel = nsqd.stats(topic, "c")
    assert {} == locality(channel)
    assert {} == locality(channel["clients"][0])


def test_without_the_experiment_all_deliveries_count_as_global(
    impartial: NsqdProcess, topic: str
) -> None:
    consumer = consumer_in(impartial, topic, "z1", "r1", rdy=10)
    impartial.publish(topic, *(b"%d" % number for number in range(5)))
    first = consumer.messages(5)[0]
    consumer.send(commands.req(first.id, 0))
    consumer.message()

    channel = impartial.stats(topic, "c")
    assert {"global_msg_count": 6} == locality(channel)
    assert [{"global_msg_count": 6}] == [locality(client) for client in channel["clients"]]
