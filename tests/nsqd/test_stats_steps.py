"""/stats of many channels: in steps, between which other clients are served."""

import json
from collections.abc import Callable, Iterator

import pytest
from tests.broker.fakes import Host

from penstock.common.go_json import to_json
from penstock.nsqd.stats import ROWS_PER_STEP, StatsJson, Steps, collect, json_steps, run_steps
from penstock.nsqd.stats_text import text_steps
from penstock.testing.nsqd import NsqdProcess, run_nsqd

CHANNELS = 1050


def collecting(host: Host) -> Steps[StatsJson]:
    return collect(
        topics=host.broker.topics, clients=None, health="OK", started_at_ns=0, memory=None
    )


def one_topic() -> Host:
    host = Host()
    topic = host.broker.topic("t")
    for number in range(CHANNELS):
        topic.channel(f"c{number}")
    return host


def many_topics() -> Host:
    host = Host()
    for number in range(CHANNELS):
        host.broker.topic(f"t{number}")
    return host


@pytest.mark.parametrize("make", [one_topic, many_topics])
def test_a_step_has_a_bounded_number_of_channels(make: Callable[[], Host]) -> None:
    stats = run_steps(collecting(make()))
    expected = CHANNELS // ROWS_PER_STEP

    assert expected == sum(1 for _ in collecting(make()))
    assert expected == sum(1 for _ in json_steps(stats))


def test_the_json_is_the_same_in_steps() -> None:
    stats = run_steps(collecting(one_topic()))

    assert to_json(stats) == run_steps(json_steps(stats))


def test_the_text_of_many_channels_is_made_in_steps() -> None:
    stats = run_steps(collecting(one_topic()))

    assert CHANNELS // ROWS_PER_STEP == sum(
        1 for _ in text_steps(stats, started_at_ns=0, wall_ns=1_000_000_000)
    )


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        process.post("/topic/create?topic=t")
        for number in range(600):
            process.post(f"/channel/create?topic=t&channel=c{number:03}")
        yield process


def test_a_large_response_is_complete(nsqd: NsqdProcess) -> None:
    stats = json.loads(nsqd.http("GET", "/stats?format=json").body)
    text = nsqd.http("GET", "/stats").body.decode()

    channels = stats["topics"][0]["channels"]
    assert [f"c{number:03}" for number in range(600)] == [
        channel["channel_name"] for channel in channels
    ]
    assert 600 == text.count("inflt:")
    one = nsqd.http("GET", "/stats?format=json&topic=t&channel=c007").json()
    assert channels[7] == one["topics"][0]["channels"][0]
