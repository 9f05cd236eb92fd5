"""A full or failing disk: nothing is acknowledged that is not stored, consumers go on being served,
and all is well again once writes succeed."""

import errno
from collections.abc import Callable

import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Host, damage

from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS
from penstock.common.errors import StorageError
from penstock.protocol import frames as wire
from penstock.storage import READ_BYTES, Issue, Run, TopicLog


def fill_disk(host: Host) -> None:
    host.files.fail("write", times=None, error=errno.ENOSPC)


class FailingReads:
    """Makes a log's reads fail, but for the first few, until it is told otherwise."""

    def __init__(self, log: TopicLog, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> None:
        self.failing = True
        self._left = after
        self._read = log.read
        monkeypatch.setattr(log, "read", self.read)

    def read(self, seq: int, max_bytes: int = READ_BYTES) -> list[Run]:
        if self.failing and self._left == 0:
            raise StorageError("cannot read")
        self._left -= self.failing
        return self._read(seq, max_bytes)


def log_of(host: Host, topic: str = "t") -> TopicLog:
    store = host.broker.topics[topic].store
    assert store is not None
    return store.log


class TestPublishing:
    def test_is_refused_and_leaves_nothing_behind(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a")
        fill_disk(host)

        with pytest.raises(StorageError, match="No space left on device"):
            host.publish("t", "b")
        topic = host.broker.topics["t"]
        assert ["a"] == consumer.take()
        assert (1, 1, 1) == (
            topic.message_count,
            topic.message_bytes,
            topic.channels["c"].message_count,
        )

    def test_works_again_when_the_disk_does(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        fill_disk(host)
        with pytest.raises(StorageError):
            host.publish("t", "lost")
        host.files.heal()
        host.publish("t", *"ab")

        assert ["a", "b"] == consumer.take()
        numbers = wire.ids_to_ints(wire.message_ids(consumer.frames))
        assert numbers[1] == numbers[0] + 1
        host.crash()
        assert ["a", "b"] == host.consumer(rdy=10).take()

    def test_the_brokers_health_tells(self, host: Host) -> None:
        host.publish("t", "a")
        fill_disk(host)
        with pytest.raises(StorageError):
            host.publish("t", "b")
        assert "No space left on device" in (host.broker.health() or "")

        host.files.heal()
        host.publish("t", "c")
        assert host.broker.health() is None

    def test_health_comes_back_without_another_publish(self, host: Host) -> None:
        """A load balancer sends none to a node that is ill."""
        host.publish("t", "a")
        fill_disk(host)
        with pytest.raises(StorageError):
            host.publish("t", "b")
        host.broker.probe_logs()
        assert host.broker.health() is not None

        host.files.heal()
        assert [] == host.broker.probe_logs()
        assert host.broker.health() is None
        host.publish("t", "c")
        assert ["a", "c"] == host.consumer(rdy=10).take()

    def test_to_an_ephemeral_topic_needs_no_disk(self, host: Host) -> None:
        consumer = host.consumer("t#ephemeral", rdy=10)
        fill_disk(host)
        host.publish("t#ephemeral", "a")

        assert ["a"] == consumer.take()


class TestConsuming:
    @pytest.mark.parametrize("mem_queue_size", [0, 10_000])
    def test_goes_on(self, mem_queue_size: int) -> None:
        host = Host(BrokerSettings(mem_queue_size=mem_queue_size))
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        fill_disk(host)
        consumer.fin("a")
        consumer.req("b")
        consumer.fin("c")
        host.pass_time(MSG_TIMEOUT_NS + SECOND_NS)

        assert ["a", "b", "c", "b", "b"] == consumer.take()

    def test_progress_is_saved_when_the_disk_works_again(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"ab")
        fill_disk(host)
        consumer.fin("a")
        host.engine.saves_asked = 0
        failures = host.broker.save_progress()
        assert ["disk full (No space left on device)"] == [each.reason for each in failures]
        assert 1 == host.engine.saves_asked

        host.files.heal()
        host.save_progress()
        host.crash()
        assert ["b"] == host.consumer(rdy=10).take()

    def test_one_topics_failure_does_not_keep_others_from_being_saved(self, host: Host) -> None:
        consumers = [host.consumer(topic, rdy=1) for topic in ("t", "u")]
        for topic, consumer in zip(("t", "u"), consumers, strict=True):
            host.publish(topic, "a")
            consumer.fin("a")
        host.files.fail("write", times=1)

        assert 1 == len(host.broker.save_progress())
        host.save_progress()
        host.crash()
        assert [0, 0] == [host.channel(topic).depth for topic in ("t", "u")]

    def test_stopping_tells_what_could_not_be_stored(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        consumer.fin("a")
        fill_disk(host)

        assert 1 == len(host.broker.close())
        assert consumer.gone

    def test_subscribing_to_a_channel_that_cannot_be_stored_can_be_tried_again(
        self, host: Host
    ) -> None:
        host.publish("t", "a")
        fill_disk(host)
        with pytest.raises(StorageError):
            host.consumer(rdy=1)
        host.files.heal()

        assert ["a"] == host.consumer(rdy=1).take()
        host.crash()
        assert ["a"] == host.consumer(rdy=1).take()


class TestReading:
    """Backlogs are read from the disk; what cannot be read now is tried again."""

    @pytest.fixture
    def host(self) -> Host:
        return Host(BrokerSettings(mem_queue_size=0))

    def test_what_could_not_be_read_is_read_later(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = host.consumer()
        host.publish("t", *"abc")
        reads = FailingReads(log_of(host), monkeypatch)
        consumer.subscriber.rdy = 10
        consumer.channel.ready(consumer.subscriber)

        assert ["cannot read"] == [str(failure) for failure in host.broker.pump()]
        host.engine.pump_wanted = False
        assert 3 == consumer.channel.depth
        assert host.clock.now_ns() + SECOND_NS == host.broker.next_deadline_ns()
        reads.failing = False
        host.pass_time(SECOND_NS)
        assert ["a", "b", "c"] == consumer.take()

    def test_a_deferred_message_that_could_not_be_read_is_read_later(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"ab", defer_ns=SECOND_NS)
        reads = FailingReads(log_of(host), monkeypatch)
        host.clock.advance(SECOND_NS)

        assert ["cannot read"] == [str(failure) for failure in host.broker.advance()]
        assert 2 == consumer.channel.deferred_count
        assert host.clock.now_ns() + SECOND_NS == host.broker.next_deadline_ns()
        host.engine.advance_wanted_ns = host.broker.next_deadline_ns()
        reads.failing = False
        host.pass_time(SECOND_NS)
        assert ["a", "b"] == consumer.take()

    def test_messages_that_are_due_and_could_not_be_read_hold_up_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The window has room for one; the rest is read when that has been taken."""
        host = Host(BrokerSettings(mem_queue_size=1))
        consumer = host.consumer(rdy=10)
        for body in "abc":
            host.publish("t", body, defer_ns=SECOND_NS)
        reads = FailingReads(log_of(host), monkeypatch)
        host.clock.advance(SECOND_NS)
        assert [] == host.broker.advance()
        assert [] == host.broker.pump()
        assert ["cannot read"] == [str(failure) for failure in host.broker.pump()]
        assert (0, 2) == (consumer.channel.depth, consumer.channel.deferred_count)
        host.publish("t", "published meanwhile")
        assert ["a", "published meanwhile"] == consumer.take()

        host.engine.advance_wanted_ns = host.broker.next_deadline_ns()
        reads.failing = False
        host.pass_time(SECOND_NS)
        assert ["b", "c"] == consumer.take()

    def test_a_recalled_message_that_could_not_be_read_is_read_later(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a", defer_ns=MSG_TIMEOUT_NS)
        (waiting,) = consumer.channel.peek_deferred(1)
        reads = FailingReads(log_of(host), monkeypatch, after=1)
        with pytest.raises(StorageError):
            consumer.channel.requeue_now(wire.message_id(waiting.frame), host.clock.wall_ns())

        reads.failing = False
        host.pass_time(SECOND_NS)
        assert ["a"] == consumer.take()

    def test_one_topics_failure_does_not_hold_up_the_others(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ill, well = host.consumer("ill"), host.consumer("well")
        host.publish("ill", "a")
        host.publish("well", "a")
        FailingReads(log_of(host, "ill"), monkeypatch)
        for consumer in (ill, well):
            consumer.subscriber.rdy = 1
            consumer.channel.ready(consumer.subscriber)

        assert 1 == len(host.broker.pump())
        assert ([], ["a"]) == (ill.take(), well.take())

    def test_timeouts_go_on_while_reads_fail(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", "a")
        host.publish("t", "later", defer_ns=MSG_TIMEOUT_NS)
        FailingReads(log_of(host), monkeypatch)
        consumer.subscriber.rdy = 0
        host.clock.advance(MSG_TIMEOUT_NS + SECOND_NS)
        host.broker.advance()

        assert 1 == consumer.channel.timeout_count


@pytest.mark.usefixtures("damaged_on_purpose")
class TestDamage:
    """What can no longer be read is stepped over, and told once."""

    @pytest.fixture
    def host(self) -> Host:
        return Host(BrokerSettings(mem_queue_size=0))

    @pytest.mark.parametrize("gone", ["first", "second", "third"])
    def test_the_rest_is_delivered(self, host: Host, gone: str) -> None:
        consumer = host.consumer()
        bodies = ["first", "second", "third"]
        for body in bodies:
            host.publish("t", body)
        damage(host.memory_files, gone)
        consumer.rdy(10)

        bodies.remove(gone)
        assert bodies == consumer.take()
        assert 0 == consumer.channel.depth
        (found,) = host.broker.probe_logs()
        assert isinstance(found, Issue)
        assert found.is_damage
        assert [] == host.broker.probe_logs()

    @pytest.mark.parametrize("end", [Host.restart, Host.crash], ids=["stop", "crash"])
    def test_found_at_the_start_it_is_no_depth(
        self, host: Host, end: Callable[[Host], None]
    ) -> None:
        host.consumer()
        for body in ("first", "second", "third"):
            host.publish("t", body)
        damage(host.memory_files, "second")
        end(host)

        assert ["first", "third"] == host.consumer(rdy=10).take()
        assert 0 == host.channel().depth

    def test_without_its_journal_a_topic_keeps_all_its_messages(self, host: Host) -> None:
        """Nobody knows any more what was finished: better again than never."""
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abc")
        consumer.fin("a")
        host.save_progress()
        for name in host.memory_files.list_names("data/topics/t"):
            if not name.endswith(".log"):
                host.memory_files.remove(f"data/topics/t/{name}")
        host.crash()

        assert {} == host.broker.topics["t"].channels
        assert ["a", "b", "c"] == host.consumer(rdy=10).take()


class TestOperators:
    """What could not be written down has not been done."""

    def test_a_channel_that_cannot_be_deleted_is_still_there(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"ab")
        topic = host.broker.topics["t"]
        fill_disk(host)
        with pytest.raises(StorageError):
            host.broker.delete_channel(topic, "c")
        host.files.heal()

        assert ["c"] == list(topic.channels)
        consumer.req("a")
        host.broker.delete_channel(topic, "c")
        assert {} == topic.channels

    def test_a_channel_that_cannot_be_emptied_keeps_everything(self, host: Host) -> None:
        channel = host.consumer().channel
        host.publish("t", *"ab")
        fill_disk(host)
        with pytest.raises(StorageError):
            channel.empty(host.broker.topics["t"].owed_seq)
        host.files.heal()

        assert 2 == channel.depth
        assert ["a", "b"] == host.consumer(rdy=10).take()

    @pytest.mark.parametrize("paused", [True, False])
    def test_a_topic_that_cannot_be_paused_or_unpaused_is_as_it_was(
        self, host: Host, paused: bool
    ) -> None:
        host.consumer()
        topic = host.broker.topics["t"]
        topic.pause(not paused)
        fill_disk(host)
        with pytest.raises(StorageError):
            topic.pause(paused)
        host.files.heal()

        assert topic.paused is not paused
        topic.pause(paused)
        assert topic.paused is paused

    def test_a_channel_that_cannot_be_moved_stays_where_it_is(self, host: Host) -> None:
        consumer = host.consumer(rdy=1)
        host.publish("t", *"abc")
        fill_disk(host)
        with pytest.raises(StorageError):
            consumer.channel.seek(host.broker.topics["t"].log.next_seq)
        host.files.heal()

        consumer.fin("a")
        assert ["a", "b"] == consumer.take()
        assert 1 == consumer.channel.depth

    def test_a_commit_that_is_not_written_is_told_and_written_later(self, host: Host) -> None:
        channel = host.channel()
        host.publish("t", *"abc")
        seq = host.broker.topics["t"].log.first_seq + 2
        fill_disk(host)
        with pytest.raises(StorageError):
            channel.commit(seq)
        host.files.heal()
        host.save_progress()
        host.crash()

        assert ["c"] == host.consumer(rdy=10).take()


class TestStartingOnAFullDisk:
    def test_after_a_crash_consumers_are_served_and_all_is_well_once_there_is_space(
        self, host: Host
    ) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"abcd")
        consumer.fin("a")
        host.save_progress()
        host.memory_files.crash()
        fill_disk(host)
        host.start()
        consumer = host.consumer(rdy=10)
        assert ["b", "c", "d"] == consumer.take()
        consumer.fin("b", "c")
        assert 1 == len(host.broker.save_progress())
        with pytest.raises(StorageError):
            host.publish("t", "e")

        host.files.heal()
        host.publish("t", "e")
        host.save_progress()
        host.crash()
        assert ["d", "e"] == host.consumer(rdy=10).take()


class TestLeaving:
    def test_the_last_consumer_of_an_ephemeral_channel_can_leave_though_nothing_can_be_written(
        self, host: Host
    ) -> None:
        consumer = host.consumer(channel="c#ephemeral", rdy=1)
        host.publish("t", "seen")
        fill_disk(host)
        consumer.leave()
        assert {} == host.broker.topics["t"].channels

        host.files.heal()
        host.save_progress()
        host.publish("t", "unseen")
        host.crash()
        assert ["unseen"] == host.consumer(rdy=10).take()
