"""After an unexpected exception a channel continues from its cursor: nothing is lost or stuck."""

import pytest
from tests.broker.fakes import Host

from penstock.broker.channel import RETRY_NS, NotInFlightError
from penstock.common.clock import SECOND_NS


def test_every_unfinished_message_is_delivered_again() -> None:
    """In flight, queued, requeued and deferred ones; a finished one stays finished."""
    host = Host()
    host.channel()
    host.publish("t", "finished", "in flight", "requeued", "queued")
    host.publish("t", "deferred", defer_ns=60 * SECOND_NS)
    consumer = host.consumer(rdy=3)
    consumer.rdy(0)
    consumer.fin("finished")
    consumer.req("requeued")
    consumer.take()

    consumer.channel.restart(host.clock.now_ns())
    with pytest.raises(NotInFlightError):
        consumer.fin("in flight")
    consumer.rdy(10)
    host.pass_time(RETRY_NS)
    assert ["in flight", "requeued", "queued"] == consumer.take()
    assert [2, 2, 1] == consumer.attempts[-3:]
    assert 1 == consumer.channel.deferred_count

    host.pass_time(60 * SECOND_NS)
    assert "deferred" in consumer.take()


def test_a_batch_that_was_not_enqueued_is_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    consumer = host.consumer(rdy=10)
    bugs: list[Exception] = []

    def fail(*_: object) -> None:
        raise AssertionError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(consumer.channel, "enqueue", fail)
        patch.setattr(host.engine, "report_bug", lambda _, bug: bugs.append(bug))
        host.publish("t", "a", "b")
    assert 1 == len(bugs)
    host.pass_time(RETRY_NS)

    assert ["a", "b"] == consumer.take()


def test_a_channel_that_fails_does_not_keep_others_from_being_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(pumps_by_itself=False)
    bugs: list[Exception] = []
    monkeypatch.setattr(host.engine, "report_bug", lambda _, bug: bugs.append(bug))
    faulty, good = (host.consumer(channel=name, rdy=10) for name in ("faulty", "good"))
    for consumer in (faulty, good):
        consumer.channel.pause(True)
    host.publish("t", "a")
    for consumer in (faulty, good):
        consumer.channel.pause(False)
    pump = faulty.channel.pump

    def fail(_: int) -> None:
        monkeypatch.setattr(faulty.channel, "pump", pump)
        raise AssertionError("injected")

    monkeypatch.setattr(faulty.channel, "pump", fail)
    host.pump()
    assert ["a"] == good.take()
    assert 1 == len(bugs)

    host.pass_time(RETRY_NS)
    host.pump()
    assert ["a"] == faulty.take()
