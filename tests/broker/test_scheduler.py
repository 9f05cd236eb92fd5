import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.fakes import RecordingDriver
from tests.broker.frames import ignore

from penstock.broker.channel import Channel
from penstock.broker.memory_log import MemoryLog
from penstock.broker.memory_queue import Backlog
from penstock.broker.scheduler import NEVER_NS, Agenda
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.testing import ManualClock


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver()


@pytest.fixture
def agenda(driver: RecordingDriver) -> Agenda:
    return Agenda(driver, wall_offset_ns=1_000_000)


def channel_on(agenda: Agenda) -> Channel:
    def make_backlog(channel: Channel) -> Backlog:
        return Backlog(10, lambda due_ns: agenda.arm_at_wall(channel, due_ns), ignore)

    return Channel("c", make_backlog, BrokerSettings(), agenda, sample=lambda: 0.0)


def topic_on(agenda: Agenda) -> Topic:
    log, clock = MemoryLog(1, 10), ManualClock()
    return Topic("t#ephemeral", log, BrokerSettings(), agenda, clock, sample=lambda: 0.0)


def test_channels_are_pumped_once_however_often_they_are_woken(agenda: Agenda) -> None:
    one, other = channel_on(agenda), channel_on(agenda)
    for channel in (one, other, one, one):
        agenda.wake(channel)

    assert [one, other] == agenda.take_awake()
    assert [] == agenda.take_awake()


def test_a_channel_may_be_woken_again_while_it_is_being_pumped(agenda: Agenda) -> None:
    channel = channel_on(agenda)
    agenda.wake(channel)
    agenda.take_awake()
    agenda.wake(channel)

    assert [channel] == agenda.take_awake()


def test_the_driver_is_asked_once_to_pump(agenda: Agenda, driver: RecordingDriver) -> None:
    agenda.wake(channel_on(agenda))
    agenda.wake(channel_on(agenda))
    assert 1 == driver.pumps_asked

    agenda.take_awake()
    agenda.wake(channel_on(agenda))
    assert 2 == driver.pumps_asked


def test_a_channel_is_due_at_its_deadline_and_not_before(agenda: Agenda) -> None:
    channel = channel_on(agenda)
    agenda.arm(channel, 100)

    assert 100 == agenda.next_deadline_ns()
    assert [] == agenda.take_due(99)
    assert [channel] == agenda.take_due(100)
    assert [] == agenda.take_due(100)
    assert agenda.next_deadline_ns() is None


def test_channels_are_due_in_order_of_their_deadlines(agenda: Agenda) -> None:
    first, second, third = (channel_on(agenda) for _ in range(3))
    agenda.arm(third, 300)
    agenda.arm(first, 100)
    agenda.arm(second, 200)

    assert [first, second] == agenda.take_due(250)
    assert 300 == agenda.next_deadline_ns()


def test_a_channel_keeps_only_its_earliest_deadline(agenda: Agenda) -> None:
    """It finds the later ones by itself when it is called for the earliest."""
    channel = channel_on(agenda)
    agenda.arm(channel, 200)
    agenda.arm(channel, 100)
    agenda.arm(channel, 300)

    assert [channel] == agenda.take_due(100)
    assert agenda.next_deadline_ns() is None
    assert [] == agenda.take_due(400)


def test_a_channel_may_be_armed_again_for_a_deadline_it_had_before(agenda: Agenda) -> None:
    channel = channel_on(agenda)
    agenda.arm(channel, 200)
    agenda.arm(channel, 100)
    agenda.take_due(100)
    agenda.arm(channel, 200)

    assert 200 == agenda.next_deadline_ns()
    assert [channel] == agenda.take_due(200)
    assert [] == agenda.take_due(200)


def test_a_channel_that_is_gone_is_not_due(agenda: Agenda) -> None:
    channel = channel_on(agenda)
    agenda.arm(channel, 100)
    channel.dismiss()

    assert agenda.next_deadline_ns() is None
    assert [] == agenda.take_due(100)


def test_the_driver_is_told_of_each_new_earliest_deadline(
    agenda: Agenda, driver: RecordingDriver
) -> None:
    one, other = channel_on(agenda), channel_on(agenda)
    agenda.arm(one, 200)
    agenda.arm(other, 300)
    agenda.arm(other, 100)
    agenda.arm(one, 150)

    assert [200, 100] == driver.advances_asked


def test_wall_time_is_turned_into_steady_time(agenda: Agenda) -> None:
    agenda.arm_at_wall(channel_on(agenda), 1_000_100)

    assert 100 == agenda.next_deadline_ns()


def test_topics_are_saved_once_however_often_they_change(
    agenda: Agenda, driver: RecordingDriver
) -> None:
    one, other = topic_on(agenda), topic_on(agenda)
    for topic in (one, other, one):
        agenda.unsaved(topic)

    assert 1 == driver.saves_asked
    assert [one, other] == agenda.take_unsaved()
    assert [] == agenda.take_unsaved()


def test_news_for_the_driver_is_passed_on(agenda: Agenda, driver: RecordingDriver) -> None:
    topic = topic_on(agenda)
    agenda.topology_changed(topic, lasting=True)

    assert 1 == driver.topology_changes


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50)) | st.integers(1, 20).map(int), max_size=30
    )
)
def test_a_driver_that_does_as_it_is_told_misses_no_deadline(
    steps: list[tuple[int, int] | int],
) -> None:
    """A pair arms a channel some time from now; a number lets time pass."""
    driver = RecordingDriver()
    agenda = Agenda(driver, wall_offset_ns=0)
    channels = [channel_on(agenda) for _ in range(4)]
    earliest: dict[Channel, int] = {}
    now_ns = 0
    for step in steps:
        if isinstance(step, tuple):
            channel, deadline_ns = channels[step[0]], now_ns + step[1]
            agenda.arm(channel, deadline_ns)
            earliest[channel] = min(deadline_ns, earliest.get(channel, NEVER_NS))
            continue
        end_ns = now_ns + step
        while (at_ns := driver.advance_wanted_ns) is not None and at_ns <= end_ns:
            now_ns = max(now_ns, at_ns)
            for channel in agenda.take_due(now_ns):
                assert now_ns == earliest.pop(channel)
            driver.advance_wanted_ns = agenda.next_deadline_ns()
        now_ns = end_ns

        assert all(deadline_ns > now_ns for deadline_ns in earliest.values())
