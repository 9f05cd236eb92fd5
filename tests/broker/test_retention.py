"""What is kept of a topic that its channels have finished, and for how long."""

import errno

import pytest
from tests.broker.fakes import Host

from penstock.common.clock import SECOND_NS
from penstock.storage import LogSettings, Retention

HOUR_NS = 3600 * SECOND_NS
KEEP_AN_HOUR = LogSettings(max_bytes_per_file=300, retention_time_ns=HOUR_NS)
LETTERS = [*"abcdefghij"]


@pytest.fixture
def host() -> Host:
    return Host(log_settings=KEEP_AN_HOUR)


def publish_one_by_one(host: Host) -> None:
    for letter in LETTERS:
        host.publish("t", letter)


def stored(host: Host) -> int:
    log = host.broker.topic("t").log
    return log.next_seq - log.first_seq


def test_it_goes_when_its_time_is_over_though_nobody_does_anything(host: Host) -> None:
    consumer = host.consumer(rdy=100)
    publish_one_by_one(host)
    consumer.fin(*LETTERS)
    host.save_progress()
    assert [] == host.broker.trim_logs()
    assert 10 == stored(host)

    host.clock.advance(HOUR_NS + SECOND_NS)
    assert [] == host.broker.trim_logs()
    assert 0 == stored(host)


def test_what_one_channel_has_not_finished_stays(host: Host) -> None:
    host.channel(channel="slow")
    consumer = host.consumer(rdy=100)
    publish_one_by_one(host)
    consumer.fin(*LETTERS)
    host.clock.advance(2 * HOUR_NS)
    assert [] == host.broker.trim_logs()

    assert LETTERS == host.consumer(channel="slow", rdy=100).take()


def test_what_waits_for_a_first_channel_stays(host: Host) -> None:
    publish_one_by_one(host)
    host.clock.advance(2 * HOUR_NS)
    assert [] == host.broker.trim_logs()

    assert LETTERS == host.consumer(rdy=100).take()


def test_a_new_retention_holds_at_once(host: Host) -> None:
    consumer = host.consumer(rdy=100)
    publish_one_by_one(host)
    consumer.fin(*LETTERS)
    host.broker.topic("t").retain(Retention())
    host.save_progress()

    assert stored(host) <= 3


def test_a_file_that_cannot_be_deleted_is_tried_again(host: Host) -> None:
    consumer = host.consumer(rdy=100)
    publish_one_by_one(host)
    consumer.fin(*LETTERS)
    host.clock.advance(2 * HOUR_NS)
    host.files.fail("remove", error=errno.EIO)

    assert ["Input/output error"] == [str(each)[-18:] for each in host.broker.trim_logs()]
    assert 10 == stored(host)
    host.save_progress()
    assert 0 == stored(host)
