"""A replicated topic passes messages on, and shows them, when they are confirmed."""

import pytest
from tests.broker.fakes import ReplicatedHost

from penstock.broker import replicated_topic
from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS
from penstock.common.errors import StorageError
from penstock.storage import LogReader, LogSettings


@pytest.fixture
def host() -> ReplicatedHost:
    return ReplicatedHost()


class TestDelivery:
    def test_messages_wait_for_their_confirmation(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a", "b")
        host.publish("t", "c")
        assert [] == consumer.take()
        host.confirm(2)
        assert ["a", "b"] == consumer.take()
        host.publish("t", "d")
        assert [] == consumer.take()
        host.confirm()
        assert ["c", "d"] == consumer.take()

    def test_high_watermark_within_a_batch(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a", "b", "c")
        host.confirm(1)
        assert ["a"] == consumer.take()
        host.confirm(1)
        assert ["b"] == consumer.take()
        host.confirm()
        assert ["c"] == consumer.take()

    def test_watermark_never_moves_back_or_beyond_the_log(self, host: ReplicatedHost) -> None:
        log = host.log
        host.publish("t", "a", "b")
        host.broker.set_high_watermark("t", log.first_seq + 1)
        host.broker.set_high_watermark("t", log.first_seq)
        assert log.first_seq + 1 == log.high_watermark
        host.broker.set_high_watermark("t", log.next_seq + 100)
        assert log.next_seq == log.high_watermark

    def test_unknown_topic_is_ignored(self, host: ReplicatedHost) -> None:
        host.broker.set_high_watermark("unknown", 5)
        assert {} == host.broker.topics

    def test_confirmed_messages_are_passed_on_from_memory(
        self, host: ReplicatedHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a")
        host.publish("t", "b")
        log = host.log
        monkeypatch.setattr(log, "read", None)
        host.confirm()
        assert ["a", "b"] == consumer.take()

    def test_messages_beyond_the_bound_are_read_from_the_log(
        self, host: ReplicatedHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replicated_topic, "KEPT_BYTES_MAX", 100)
        consumer, other = host.consumer(rdy=100), host.consumer(channel="e#ephemeral", rdy=100)
        bodies = [f"{number:02}" for number in range(20)]
        for body in bodies[:10]:
            host.publish("t", body)
        host.confirm(1)  # There is room for one of the next messages.
        for body in bodies[10:]:
            host.publish("t", body)
        host.confirm(7)
        host.confirm()
        assert bodies == consumer.take()
        assert bodies == other.take()
        host.publish("t", "last")
        host.confirm()
        assert ["last"] == consumer.take()

    def test_failed_read_for_an_ephemeral_channel(
        self, host: ReplicatedHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replicated_topic, "KEPT_BYTES_MAX", 0)
        consumer, other = host.consumer(rdy=100), host.consumer(channel="e#ephemeral", rdy=100)
        host.publish("t", "a")
        log = host.log
        with monkeypatch.context() as patch:
            patch.setattr(log, "read", failing_read)
            host._pumps_by_itself = False
            host.confirm()
        host._pumps_by_itself = True
        host.events_done()
        assert ["a"] == consumer.take()
        assert [] == other.take()

    def test_deferred_messages_keep_their_due_time(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "later", defer_ns=10 * SECOND_NS)
        host.publish("t", "late", defer_ns=2 * SECOND_NS)
        host.pass_time(5 * SECOND_NS)
        assert [] == consumer.take()
        host.confirm()
        host.pass_time(SECOND_NS)
        assert ["late"] == consumer.take()
        host.pass_time(3 * SECOND_NS)
        assert [] == consumer.take()
        host.pass_time(SECOND_NS)
        assert ["later"] == consumer.take()

    def test_slow_channel(self) -> None:
        host = ReplicatedHost(BrokerSettings(mem_queue_size=2))
        consumer = host.consumer()
        for body in "abcdef":
            host.publish("t", body)
        host.confirm(5)
        assert 5 == consumer.channel.depth
        consumer.rdy(10)
        assert ["a", "b", "c", "d", "e"] == consumer.take()
        host.confirm()
        assert ["f"] == consumer.take()

    def test_ephemeral_topic_delivers_at_once(self, host: ReplicatedHost) -> None:
        consumer = host.consumer("t#ephemeral", rdy=10)
        host.publish("t#ephemeral", "a")
        assert ["a"] == consumer.take()

    def test_confirmation_while_the_batch_is_appended(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        log = host.log
        log.on_append = lambda: host.broker.set_high_watermark("t", log.next_seq)
        host.publish("t", "a")
        host.publish("t", "b")
        assert ["a", "b"] == consumer.take()

    def test_listeners_are_called_when_messages_become_visible(self, host: ReplicatedHost) -> None:
        calls: list[int] = []
        topic = host.topic()
        topic.call_on_next_change(lambda: calls.append(topic.log.high_watermark))
        host.publish("t", "a", "b")
        assert [] == calls
        host.confirm(1)
        assert [topic.log.first_seq + 1] == calls
        topic.call_on_next_change(lambda: calls.append(0))
        host.confirm(0)
        assert 1 == len(calls)


def failing_read(*_: object) -> None:
    raise StorageError("cannot read")


class TestFigures:
    def test_depth_and_counts(self, host: ReplicatedHost) -> None:
        host.publish("t", "a", "b", "c")
        topic = host.topic()
        assert (0, 3) == (topic.depth, topic.message_count)
        host.confirm(2)
        assert (2, 3) == (topic.depth, topic.message_count)
        channel = host.channel()
        assert (0, 2, 2) == (topic.depth, channel.depth, channel.message_count)
        host.confirm()
        assert (0, 3, 3) == (topic.depth, channel.depth, channel.message_count)


class TestChannels:
    def test_first_channel_before_the_confirmation(self, host: ReplicatedHost) -> None:
        host.publish("t", "a")
        consumer = host.consumer(rdy=10)
        assert [] == consumer.take()
        host.confirm()
        assert ["a"] == consumer.take()

    def test_first_channel_after_the_confirmation(self, host: ReplicatedHost) -> None:
        host.publish("t", "a")
        host.confirm()
        host.publish("t", "b")
        consumer = host.consumer(rdy=10)
        assert ["a"] == consumer.take()
        host.confirm()
        assert ["b"] == consumer.take()

    def test_later_channel_gets_no_earlier_messages(self, host: ReplicatedHost) -> None:
        host.consumer(channel="first", rdy=10)
        host.publish("t", "a")
        host.confirm()
        second = host.consumer(channel="second", rdy=10)
        host.publish("t", "b")
        host.confirm()
        assert ["b"] == second.take()

    def test_emptied_channel(self, host: ReplicatedHost) -> None:
        channel = host.channel()
        host.publish("t", "a", "b")
        host.confirm(1)
        channel.empty(host.topic().owed_seq)
        consumer = host.consumer(rdy=10)
        host.confirm()
        assert ["b"] == consumer.take()


class TestPause:
    def test_paused_topic_holds_confirmed_messages_back(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        host.topic().pause(True)
        host.publish("t", "a", "b", "c")
        host.confirm(2)
        assert [] == consumer.take()
        assert 2 == host.topic().depth
        host.topic().pause(False)
        host.events_done()
        assert ["a", "b"] == consumer.take()
        host.confirm()
        assert ["c"] == consumer.take()

    def test_emptied_topic(self, host: ReplicatedHost) -> None:
        consumer = host.consumer(rdy=10)
        host.topic().pause(True)
        host.publish("t", "a", "b")
        host.confirm(1)
        host.topic().empty()
        host.topic().pause(False)
        host.confirm()
        assert ["b"] == consumer.take()

    def test_restart_while_paused(self, host: ReplicatedHost) -> None:
        host.channel()
        host.publish("t", "a")
        host.confirm()
        host.topic().pause(True)
        host.publish("t", "b", "c")
        host.confirm(1)
        host.restart()
        consumer = host.consumer(rdy=10)
        assert ["a"] == consumer.take()  # It was confirmed before the topic was paused.
        host.topic().pause(False)
        host.events_done()
        assert [] == consumer.take()
        host.confirm()
        assert ["b", "c"] == consumer.take()


@pytest.mark.parametrize("is_clean", [True, False])
class TestRestart:
    def restart(self, host: ReplicatedHost, *, is_clean: bool) -> None:
        host.save_progress()
        if is_clean:
            host.restart()
        else:
            host.crash()

    def test_unconfirmed_messages_are_delivered_once_confirmed(
        self, host: ReplicatedHost, is_clean: bool
    ) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a", "b", "c")
        host.confirm(2)
        consumer.fin("a")
        self.restart(host, is_clean=is_clean)

        consumer = host.consumer(rdy=10)
        assert ([], 0) == (consumer.take(), consumer.channel.depth)
        host.publish("t", "d")
        host.confirm(2)
        assert ["b"] == consumer.take()
        host.confirm()
        assert ["c", "d"] == consumer.take()
        assert 1 == consumer.channel.message_count

    def test_deferred_and_requeued_messages(self, host: ReplicatedHost, is_clean: bool) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "deferred", defer_ns=20 * SECOND_NS)
        host.publish("t", "requeued")
        host.confirm()
        consumer.req("requeued", 10 * SECOND_NS)
        self.restart(host, is_clean=is_clean)

        consumer = host.consumer(rdy=10)
        host.confirm()
        assert ([], 2) == (consumer.take(), consumer.channel.deferred_count)
        host.pass_time(10 * SECOND_NS)
        assert ["requeued"] == consumer.take()
        assert [2] == consumer.attempts
        host.pass_time(10 * SECOND_NS)
        assert ["deferred"] == consumer.take()

    def test_new_channel_gets_no_messages_of_earlier_runs(
        self, host: ReplicatedHost, is_clean: bool
    ) -> None:
        host.channel()
        host.publish("t", "a", "b")
        host.confirm(1)
        self.restart(host, is_clean=is_clean)

        later = host.consumer(channel="later", rdy=10)
        ephemeral = host.consumer(channel="e#ephemeral", rdy=10)
        host.publish("t", "c")
        host.confirm()
        assert ["c"] == later.take()
        assert ["c"] == ephemeral.take()

    def test_topic_without_channels(self, host: ReplicatedHost, is_clean: bool) -> None:
        host.publish("t", "a", "b")
        host.confirm(1)
        self.restart(host, is_clean=is_clean)

        consumer = host.consumer(rdy=10)
        assert [] == consumer.take()
        host.confirm()
        assert ["a", "b"] == consumer.take()

    def test_emptied_before_the_confirmation(self, host: ReplicatedHost, is_clean: bool) -> None:
        host.channel()
        host.publish("t", "a", "b")
        host.confirm()
        self.restart(host, is_clean=is_clean)

        host.channel().empty(host.topic().owed_seq)
        consumer = host.consumer(rdy=10)
        host.publish("t", "c")
        host.confirm()
        assert ["c"] == consumer.take()


class TestReader:
    def read(self, reader: LogReader) -> list[int]:
        """The sequence numbers of all messages that can be read now."""
        seqs: list[int] = []
        while (job := reader.next_read(1000)) is not None:
            for header, _, _ in reader.advance(job, job.run()):
                seqs += range(header.first_seq, header.next_seq)
        return seqs

    def test_reader_ends_at_the_high_watermark(self) -> None:
        host = ReplicatedHost(log_settings=LogSettings(max_bytes_per_file=400))
        log = host.log
        for _ in range(10):
            host.publish("t", "a", "b", "c")
        first = log.first_seq
        endless, limited = LogReader(log, first), LogReader(log, first, first + 14)
        assert [] == self.read(endless)
        found: list[int] = []
        for count in (1, 2, 4, 1, 7, 15):
            host.confirm(count)
            found += self.read(endless)
            assert list(range(first, log.high_watermark)) == found
        assert list(range(first, first + 14)) == self.read(limited)
        assert limited.is_done
        endless.close()
        limited.close()
