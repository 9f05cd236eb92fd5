"""The process may end at any write to the disk: before it, or with part of it done.

A story is told up to that point, and a new process then shows what is left. What was acknowledged
must be there; the one step that was under way may have happened or not.
"""

from collections.abc import Callable

import pytest
from tests.broker.fakes import Consumer, Host

from penstock.broker.settings import BrokerSettings
from penstock.testing import SimulatedCrash


class Story:
    """What happens, and what may be expected of channel "c" at any time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.published: list[str] = []
        self.finished: set[str] = set()
        self.under_way: set[str] = set()
        """May be delivered and may be not: being published, or finished and not saved."""

    def tell(self) -> None:
        self.publish("a", "b")
        consumer = self.host.consumer(rdy=100)
        self.publish("c", "d")
        self.finish(consumer, "a", "c")
        self.host.broker.topics["t"].pause(True)
        self.publish("e")
        self.finish(consumer, "b")
        self.publish("f")
        self.host.broker.topics["t"].pause(False)
        self.host.pump()
        self.host.consumer(channel="other", rdy=1)
        self.publish("g", "h")
        self.host.broker.delete_channel(self.host.broker.topics["t"], "other")
        consumer.req("h")
        self.finish(consumer, "f", "g")
        self.publish("i")
        self.host.restart()

    def publish(self, *bodies: str) -> None:
        self.under_way |= set(bodies)
        self.host.publish("t", *bodies)
        self.under_way -= set(bodies)
        self.published += bodies

    def finish(self, consumer: Consumer, *bodies: str) -> None:
        self.under_way |= set(bodies)
        consumer.fin(*bodies)
        self.host.save_progress()
        self.under_way -= set(bodies)
        self.finished |= set(bodies)

    def check(self) -> None:
        self.host.broker.topic("t").pause(False)  # as the daemon does for one that was not paused
        received = self.host.consumer(rdy=100).take()
        expected = {*self.published} - self.finished - self.under_way
        assert expected <= {*received} <= expected | self.under_way
        assert sorted(received) == received


def end_process(host: Host) -> None:
    host.files.heal()
    host.crash()


@pytest.mark.parametrize("mem_queue_size", [0, 10_000])
@pytest.mark.parametrize("written", [0, 10])
def test_nothing_acknowledged_is_lost_wherever_the_process_ends(
    mem_queue_size: int, written: int
) -> None:
    changes = 0
    while True:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        story = Story(host)
        host.files.crash_after(changes, written=written)
        try:
            story.tell()
        except SimulatedCrash:
            end_process(host)
            story.check()
            changes += 1
        else:
            break

    assert changes > 20


def test_told_to_its_end_the_story_is_as_expected() -> None:
    host = Host()
    story = Story(host)
    story.tell()

    assert [*"abcdefghi"] == story.published
    assert {*"abcfg"} == story.finished
    story.check()


Verb = Callable[[Host], object]


@pytest.mark.parametrize(
    "verb",
    [
        lambda host: host.broker.delete_topic("t"),
        lambda host: host.broker.delete_channel(host.broker.topics["t"], "c"),
        lambda host: host.channel().empty(host.broker.topics["t"].owed_seq),
        lambda host: host.broker.topics["t"].empty(),
    ],
    ids=["delete topic", "delete channel", "empty channel", "empty topic"],
)
def test_an_operator_who_was_interrupted_can_try_again(verb: Verb) -> None:
    uninterrupted = Host()
    uninterrupted.consumer(rdy=1)
    uninterrupted.publish("t", *"abc")
    verb(uninterrupted)
    for changes in range(100):
        host = Host()
        host.consumer(rdy=1)
        host.publish("t", *"abc")
        host.files.crash_after(changes)
        try:
            verb(host)
        except SimulatedCrash:
            end_process(host)
            if "t" in host.broker.topics:
                host.channel()
                verb(host)
            assert unfinished(uninterrupted) == unfinished(host)
        else:
            return
    raise AssertionError("it never came to its end")


def unfinished(host: Host) -> dict[str, dict[str, int]]:
    """The number of unfinished messages of every channel of every topic."""
    return {
        name: {each.name: each.depth + each.in_flight_count for each in topic.channels.values()}
        for name, topic in host.broker.topics.items()
    }
