"""Channels that are put somewhere in the log: made there, moved there, or moved by commits."""

import pytest
from tests.broker.fakes import Consumer, Host

from penstock.broker.channel import NotInFlightError
from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ProtocolError
from penstock.storage import LogSettings, Retention

KEEP_ALL = LogSettings(max_bytes_per_file=300, retention_time_ns=10**18)
LETTERS = [*"abcdefghij"]


@pytest.fixture(params=[10_000, 3, 0], ids=lambda size: f"window of {size}")
def host(request: pytest.FixtureRequest) -> Host:
    """However much of the log a channel has in memory, the same comes of it."""
    return Host(BrokerSettings(mem_queue_size=request.param), log_settings=KEEP_ALL)


def consumed(host: Host, *bodies: str) -> Consumer:
    """A consumer that has finished what was published."""
    host.channel()
    consumer = host.consumer(rdy=100)
    host.publish("t", *bodies)
    assert [*bodies] == consumer.take()
    consumer.fin(*bodies)
    return consumer


def first_seq(host: Host) -> int:
    return host.broker.topic("t").log.first_seq


class TestSeek:
    def test_all_comes_again_in_order_as_if_it_were_new(self, host: Host) -> None:
        consumer = consumed(host, *LETTERS)
        host.channel().seek(first_seq(host))
        host.pump()

        assert LETTERS == consumer.take()
        assert {1} == set(consumer.attempts)

    def test_what_is_published_meanwhile_comes_after(self, host: Host) -> None:
        consumer = consumed(host, *LETTERS)
        consumer.rdy(0)
        host.channel().seek(first_seq(host) + 8)
        host.publish("t", "new")
        assert 3 == host.channel().depth

        consumer.rdy(100)
        assert ["i", "j", "new"] == consumer.take()

    def test_what_is_in_flight_is_forgotten(self, host: Host) -> None:
        host.channel()
        host.publish("t", "a", "b", "c")
        consumer = host.consumer(rdy=2)
        host.channel().seek(first_seq(host) + 2)

        assert 0 == host.channel().in_flight_count
        with pytest.raises(NotInFlightError, match="E_FIN_FAILED"):
            consumer.fin("a")
        host.pump()
        assert ["a", "b", "c"] == consumer.take()
        consumer.fin("c")
        assert 0 == host.channel().depth

    def test_what_is_deferred_below_it_is_dropped_and_above_it_waits(self, host: Host) -> None:
        host.channel()
        host.publish("t", "dropped", defer_ns=SECOND_NS)
        host.publish("t", "waits", defer_ns=SECOND_NS)
        consumer = host.consumer(rdy=100)
        host.channel().seek(first_seq(host) + 1)
        host.pump()

        assert [] == consumer.take()
        host.pass_time(2 * SECOND_NS)
        assert ["waits"] == consumer.take()

    def test_what_was_finished_before_it_is_skipped_over(self, host: Host) -> None:
        consumer = consumed(host, *LETTERS)
        host.channel().seek(host.broker.topic("t").log.next_seq)
        host.publish("t", "new")

        assert ["new"] == consumer.take()

    @pytest.mark.parametrize("end", ["restart", "crash"])
    def test_it_outlives_the_process(self, host: Host, end: str) -> None:
        consumed(host, *LETTERS).leave()
        host.channel().seek(first_seq(host) + 4)
        if end == "crash":
            host.crash()
        else:
            host.restart()

        assert 6 == host.channel().depth
        assert LETTERS[4:] == host.consumer(rdy=100).take()

    def test_it_crosses_what_is_no_longer_stored(self, host: Host) -> None:
        consumer = consumed(host, *LETTERS)
        gone_seq = first_seq(host) + 5
        host.publish("t", "k", "l")
        assert ["k", "l"] == consumer.take()
        consumer.fin("k", "l")
        host.broker.topic("t").retain(Retention())
        host.save_progress()
        assert gone_seq < first_seq(host)
        host.channel().seek(gone_seq)

        assert 2 == host.channel().depth
        host.pump()
        assert ["k", "l"] == consumer.take()

    def test_what_it_needs_is_kept(self, host: Host) -> None:
        consumed(host, *LETTERS).leave()
        host.publish("t", *LETTERS)
        host.channel().seek(first_seq(host))
        host.broker.topic("t").retain(Retention())
        host.save_progress()

        assert LETTERS + LETTERS == host.consumer(rdy=100).take()

    def test_a_paused_topic_can_be_skipped_ahead_of(self, host: Host) -> None:
        consumer = consumed(host, "a")
        topic = host.broker.topic("t")
        topic.pause(True)
        host.publish("t", "b", "c")
        host.channel().seek(topic.log.next_seq - 1)
        topic.pause(False)
        host.pump()

        assert ["c"] == consumer.take()
        assert 0 == host.channel().depth


class TestCreating:
    @pytest.mark.parametrize("place", [0, 4, 10])
    def test_a_channel_begins_where_it_is_put(self, host: Host, place: int) -> None:
        consumed(host, *LETTERS)
        host.broker.topic("t").channel("new", first_seq(host) + place)
        host.crash()
        host.publish("t", "later")

        assert [*LETTERS[place:], "later"] == host.consumer(channel="new", rdy=100).take()

    def test_the_first_channel_may_leave_what_waited(self, host: Host) -> None:
        host.publish("t", "a", "b")
        topic = host.broker.topic("t")
        topic.channel("c", topic.log.next_seq)
        host.publish("t", "c")

        assert ["c"] == host.consumer(rdy=100).take()


class TestCommits:
    def test_below_a_commit_all_is_finished(self, host: Host) -> None:
        host.channel()
        host.publish("t", *LETTERS)
        seq = first_seq(host) + 7

        assert seq == host.channel().commit(seq)
        assert 3 == host.channel().depth
        assert seq == host.channel().commit(seq - 3)
        assert 3 == host.channel().depth

    @pytest.mark.parametrize("end", ["restart", "crash"])
    def test_it_outlives_the_process(self, host: Host, end: str) -> None:
        host.channel()
        host.publish("t", *LETTERS)
        host.channel().commit(first_seq(host) + 7)
        if end == "crash":
            host.crash()
        else:
            host.restart()

        assert ["h", "i", "j"] == host.consumer(rdy=100).take()

    def test_it_lets_the_log_be_trimmed(self) -> None:
        host = Host(log_settings=LogSettings(max_bytes_per_file=300))
        host.channel()
        for letter in LETTERS:
            host.publish("t", letter)
        seq = first_seq(host) + 8
        host.channel().commit(seq)
        host.save_progress()

        assert seq - 3 < first_seq(host) <= seq

    def test_what_consumers_had_finished_stays_finished(self, host: Host) -> None:
        host.channel()
        host.publish("t", *LETTERS)
        consumer = host.consumer(rdy=100)
        consumer.fin("c", "f")
        consumer.leave()
        seq = first_seq(host)

        assert seq + 3 == host.channel().commit(seq + 2)
        assert 6 == host.channel().depth
        assert [*"deghij"] == host.consumer(rdy=100).take()

    def test_what_a_lost_consumer_had_in_flight_does_not_come_back(self) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        host.channel()
        host.publish("t", "a", "b")
        consumer = host.consumer(rdy=100)
        consumer.leave()
        host.channel().commit(first_seq(host) + 1)
        host.pass_time(120 * SECOND_NS)

        assert ["b"] == host.consumer(rdy=100).take()

    def test_it_can_be_given_back_to_consumers(self, host: Host) -> None:
        host.channel().set_committing(True)
        host.publish("t", *"abc")
        host.channel().commit(first_seq(host) + 1)
        host.publish("t", "d")
        host.channel().set_committing(False)
        consumer = host.consumer(rdy=100)
        host.publish("t", "e")

        assert [*"bcde"] == consumer.take()

    def test_it_keeps_consumers_out(self, host: Host) -> None:
        host.channel().set_committing(True)

        with pytest.raises(ProtocolError, match=r"E_SUB_FAILED .* t:c is moved by commits"):
            host.consumer()
