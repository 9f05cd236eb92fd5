import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.fakes import RecordingEngine
from tests.broker.frames import ignore

from penstock.broker.channel import Channel
from penstock.broker.memory_log import MemoryLog
from penstock.broker.memory_queue import EphemeralQueue
from penstock.broker.scheduler import NEVER_NS, Scheduler
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.testing import ManualClock


@pytest.fixture
def engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
def scheduler(engine: RecordingEngine) -> Scheduler:
    return Scheduler(engine, wall_offset_ns=1_000_000)


def channel_on(scheduler: Scheduler) -> Channel:
    def make_queue(channel: Channel) -> EphemeralQueue:
        return EphemeralQueue(10, lambda due_ns: scheduler.arm_at_wall(channel, due_ns), ignore)

    return Channel("c", make_queue, BrokerSettings(), scheduler, sample=lambda: 0.0)


def topic_on(scheduler: Scheduler) -> Topic:
    log, clock = MemoryLog(1, 10), ManualClock()
    return Topic("t#ephemeral", log, BrokerSettings(), scheduler, clock, sample=lambda: 0.0)


def test_channels_are_pumped_once_however_often_they_are_woken(scheduler: Scheduler) -> None:
    one, other = channel_on(scheduler), channel_on(scheduler)
    for channel in (one, other, one, one):
        scheduler.wake(channel)

    assert [one, other] == scheduler.take_awake()
    assert [] == scheduler.take_awake()


def test_a_channel_may_be_woken_again_while_it_is_being_pumped(scheduler: Scheduler) -> None:
    channel = channel_on(scheduler)
    scheduler.wake(channel)
    scheduler.take_awake()
    scheduler.wake(channel)

    assert [channel] == scheduler.take_awake()


def test_the_driver_is_asked_once_to_pump(scheduler: Scheduler, engine: RecordingEngine) -> None:
    scheduler.wake(channel_on(scheduler))
    scheduler.wake(channel_on(scheduler))
    assert 1 == engine.pumps_asked

    scheduler.take_awake()
    scheduler.wake(channel_on(scheduler))
    assert 2 == engine.pumps_asked


def test_a_channel_is_due_at_its_deadline_and_not_before(scheduler: Scheduler) -> None:
    channel = channel_on(scheduler)
    scheduler.arm(channel, 100)

    assert 100 == scheduler.next_deadline_ns()
    assert [] == scheduler.take_due(99)
    assert [channel] == scheduler.take_due(100)
    assert [] == scheduler.take_due(100)
    assert scheduler.next_deadline_ns() is None


def test_channels_are_due_in_order_of_their_deadlines(scheduler: Scheduler) -> None:
    first, second, third = (channel_on(scheduler) for _ in range(3))
    scheduler.arm(third, 300)
    scheduler.arm(first, 100)
    scheduler.arm(second, 200)

    assert [first, second] == scheduler.take_due(250)
    assert 300 == scheduler.next_deadline_ns()


def test_a_channel_keeps_only_its_earliest_deadline(scheduler: Scheduler) -> None:
    """It finds the later ones by itself when it is called for the earliest."""
    channel = channel_on(scheduler)
    scheduler.arm(channel, 200)
    scheduler.arm(channel, 100)
    scheduler.arm(channel, 300)

    assert [channel] == scheduler.take_due(100)
    assert scheduler.next_deadline_ns() is None
    assert [] == scheduler.take_due(400)


def test_a_channel_may_be_armed_again_for_a_deadline_it_had_before(scheduler: Scheduler) -> None:
    channel = channel_on(scheduler)
    scheduler.arm(channel, 200)
    scheduler.arm(channel, 100)
    scheduler.take_due(100)
    scheduler.arm(channel, 200)

    assert 200 == scheduler.next_deadline_ns()
    assert [channel] == scheduler.take_due(200)
    assert [] == scheduler.take_due(200)


def test_a_channel_that_is_gone_is_not_due(scheduler: Scheduler) -> None:
    channel = channel_on(scheduler)
    scheduler.arm(channel, 100)
    channel.disconnect_subscribers()

    assert scheduler.next_deadline_ns() is None
    assert [] == scheduler.take_due(100)


def test_the_driver_is_told_of_each_new_earliest_deadline(
    scheduler: Scheduler, engine: RecordingEngine
) -> None:
    one, other = channel_on(scheduler), channel_on(scheduler)
    scheduler.arm(one, 200)
    scheduler.arm(other, 300)
    scheduler.arm(other, 100)
    scheduler.arm(one, 150)

    assert [200, 100] == engine.advances_asked


def test_wall_time_is_turned_into_steady_time(scheduler: Scheduler) -> None:
    scheduler.arm_at_wall(channel_on(scheduler), 1_000_100)

    assert 100 == scheduler.next_deadline_ns()


def test_topics_are_saved_once_however_often_they_change(
    scheduler: Scheduler, engine: RecordingEngine
) -> None:
    one, other = topic_on(scheduler), topic_on(scheduler)
    for topic in (one, other, one):
        scheduler.unsaved(topic)

    assert 1 == engine.saves_asked
    assert [one, other] == scheduler.take_unsaved()
    assert [] == scheduler.take_unsaved()


def test_news_for_the_driver_is_passed_on(scheduler: Scheduler, engine: RecordingEngine) -> None:
    topic = topic_on(scheduler)
    scheduler.topology_changed(topic, persistent=True)

    assert 1 == engine.topology_changes


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50)) | st.integers(1, 20).map(int), max_size=30
    )
)
def test_a_driver_that_does_as_it_is_told_misses_no_deadline(
    steps: list[tuple[int, int] | int],
) -> None:
    """A pair arms a channel some time from now; a number lets time pass."""
    engine = RecordingEngine()
    scheduler = Scheduler(engine, wall_offset_ns=0)
    channels = [channel_on(scheduler) for _ in range(4)]
    earliest: dict[Channel, int] = {}
    now_ns = 0
    for step in steps:
        if isinstance(step, tuple):
            channel, deadline_ns = channels[step[0]], now_ns + step[1]
            scheduler.arm(channel, deadline_ns)
            earliest[channel] = min(deadline_ns, earliest.get(channel, NEVER_NS))
            continue
        end_ns = now_ns + step
        while (at_ns := engine.advance_wanted_ns) is not None and at_ns <= end_ns:
            now_ns = max(now_ns, at_ns)
            for channel in scheduler.take_due(now_ns):
                assert now_ns == earliest.pop(channel)
            engine.advance_wanted_ns = scheduler.next_deadline_ns()
        now_ns = end_ns

        assert all(deadline_ns > now_ns for deadline_ns in earliest.values())
