import pytest
from tests.broker.fakes import MSG_TIMEOUT_NS, Host

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ProtocolError, StorageError
from penstock.protocol import frames as wire


class TestTopics:
    def test_a_topic_is_made_when_it_is_first_named(self, host: Host) -> None:
        topic = host.broker.topic("t")

        assert {"t": topic} == host.broker.topics
        assert topic is host.broker.topic("t") is host.broker.topic_cache["t"]

    def test_the_driver_hears_of_lasting_topics_and_channels(self, host: Host) -> None:
        def changes() -> int:
            count, host.engine.topology_changes = host.engine.topology_changes, 0
            return count

        topic = host.broker.topic("t")
        assert 1 == changes()
        host.broker.topic("t").channel("c")
        assert 1 == changes()
        host.broker.topic("t").channel("c")
        host.broker.topic("t").channel("c#ephemeral")
        host.broker.topic("e#ephemeral").channel("c")
        assert 0 == changes()
        host.broker.delete_channel(topic, "c#ephemeral")
        host.broker.delete_topic("e#ephemeral")
        assert 0 == changes()
        host.broker.delete_channel(topic, "c")
        assert 1 == changes()
        host.broker.delete_topic("t")
        assert 1 == changes()

    def test_topics_do_not_share_messages(self, host: Host) -> None:
        one, other = host.consumer("one", rdy=10), host.consumer("other", rdy=10)
        host.publish("one", "a")
        host.publish("other", "b")

        assert (["a"], ["b"]) == (one.take(), other.take())

    @pytest.mark.parametrize("name", ["t", "t#ephemeral"])
    def test_deleting_one_sends_its_subscribers_away(self, host: Host, name: str) -> None:
        consumers = [host.consumer(name, channel) for channel in ("c", "d")]
        host.broker.delete_topic(name)

        assert {} == host.broker.topics
        assert [True, True] == [each.gone for each in consumers]

    def test_deleting_one_leaves_nothing_of_it(self, host: Host) -> None:
        host.consumer(rdy=1)
        host.publish("t", *"ab")
        host.broker.delete_topic("t")
        assert 0 == host.broker.topic("t").depth

        host.broker.delete_topic("t")
        host.restart()
        assert {} == host.broker.topics

    def test_one_made_anew_reuses_no_id(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abc")
        host.broker.delete_topic("t")
        host.pass_time(SECOND_NS)
        again = host.consumer(rdy=10)
        host.publish("t", *"abc")

        ids = {*wire.message_ids(consumer.frames), *wire.message_ids(again.frames)}
        assert 6 == len(ids)

    def test_nothing_of_a_deleted_one_happens_later(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"ab")
        consumer.fin("a")
        host.publish("t", "later", defer_ns=SECOND_NS)
        host.broker.delete_topic("t")

        host.pump()
        host.pass_time(2 * MSG_TIMEOUT_NS)
        host.save_progress()
        assert ["a", "b"] == consumer.take()

    def test_what_was_finished_before_its_channel_was_deleted_is_not_saved_after(
        self, host: Host
    ) -> None:
        consumer = host.consumer(rdy=3)
        host.publish("t", *"abc")
        consumer.fin("a")
        consumer.req("b")
        host.broker.delete_channel(host.broker.topics["t"], "c")
        host.save_progress()
        consumer.leave()

        assert {} == host.broker.topics["t"].channels


class TestSubscribing:
    def test_makes_topic_and_channel(self, host: Host) -> None:
        host.consumer("t", "c")

        assert ["c"] == list(host.broker.topics["t"].channels)

    def test_beyond_the_limit_is_refused(self) -> None:
        host = Host(BrokerSettings(max_channel_consumers=2))
        first = host.consumer()
        host.consumer()
        host.consumer(channel="other")

        with pytest.raises(ProtocolError) as refusal:
            host.consumer()
        assert "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2" == str(refusal.value)
        assert refusal.value.fatal
        first.leave()
        host.consumer()

    def test_while_we_are_stopping_is_refused(self, host: Host) -> None:
        host.broker.exit()

        with pytest.raises(ProtocolError) as refusal:
            host.consumer()
        assert "E_SUB_FAILED SUB failed exiting" == str(refusal.value)
        assert refusal.value.fatal
        assert {} == host.broker.topics

    def test_publishing_while_we_are_stopping_is_refused(self, host: Host) -> None:
        host.broker.exit()

        with pytest.raises(StorageError, match=r"^exiting$"):
            host.publish("t", "a")
        assert {} == host.broker.topics


class TestEphemeralThings:
    def test_a_channel_goes_with_its_last_client(self, host: Host) -> None:
        one, other = (host.consumer(channel="c#ephemeral") for _ in range(2))
        one.leave()
        assert ["c#ephemeral"] == list(host.broker.topics["t"].channels)

        other.leave()
        assert {} == host.broker.topics["t"].channels

    def test_a_channel_that_never_had_a_client_stays(self, host: Host) -> None:
        host.channel(channel="c#ephemeral")
        host.pass_time(SECOND_NS)

        assert ["c#ephemeral"] == list(host.broker.topics["t"].channels)

    def test_a_topic_goes_with_its_last_channel(self, host: Host) -> None:
        one = host.consumer("t#ephemeral", "c#ephemeral")
        other = host.consumer("t#ephemeral", "d#ephemeral")
        one.leave()
        assert ["t#ephemeral"] == list(host.broker.topics)

        other.leave()
        assert {} == host.broker.topics

    def test_a_topic_with_an_ordinary_channel_stays_until_that_is_deleted(self, host: Host) -> None:
        consumer = host.consumer("t#ephemeral", "c")
        consumer.leave()
        assert ["c"] == list(host.broker.topics["t#ephemeral"].channels)

        host.broker.delete_channel(host.broker.topics["t#ephemeral"], "c")
        assert {} == host.broker.topics

    def test_a_topic_that_never_had_a_channel_stays(self, host: Host) -> None:
        host.publish("t#ephemeral", "a")

        assert ["t#ephemeral"] == list(host.broker.topics)

    def test_a_lasting_topic_stays_without_channels(self, host: Host) -> None:
        host.consumer(channel="c#ephemeral").leave()

        assert ["t"] == list(host.broker.topics)

    def test_leaving_what_was_deleted_meanwhile_touches_no_namesake(self, host: Host) -> None:
        old = host.consumer("t#ephemeral", "c#ephemeral")
        host.broker.delete_topic("t#ephemeral")
        new = host.consumer("t#ephemeral", "c#ephemeral", rdy=1)
        old.leave()
        host.publish("t#ephemeral", "a")

        assert ["a"] == new.take()

    def test_what_its_last_client_had_in_flight_goes_with_it(self) -> None:
        host = Host(BrokerSettings(requeue_on_disconnect=False))
        consumer = host.consumer(channel="c#ephemeral", rdy=1)
        host.publish("t", "a")
        consumer.leave()
        host.pass_time(2 * MSG_TIMEOUT_NS)

        assert ["a"] == consumer.take()
        assert {} == host.broker.topics["t"].channels


class TestStopping:
    def test_sends_all_subscribers_away(self, host: Host) -> None:
        consumers = [host.consumer("t"), host.consumer("u"), host.consumer("e#ephemeral")]
        host.broker.close()

        assert [True] * 3 == [each.gone for each in consumers]
        assert host.broker.exiting

    def test_they_may_leave_after_that(self, host: Host) -> None:
        consumers = [host.consumer(rdy=1), host.consumer("e#ephemeral", "c#ephemeral", rdy=1)]
        host.publish("t", "a")
        host.publish("e#ephemeral", "a")
        host.broker.close()
        for consumer in consumers:
            consumer.leave()

        assert [[], []] == [list(each.channel.subscribers) for each in consumers]
        host.reopen()
        again = host.consumer(rdy=10)
        assert [("a", 2)] == list(zip(again.bodies, again.attempts, strict=True))

    def test_nothing_is_saved_after_that(self, host: Host) -> None:
        consumer = host.consumer(rdy=2)
        host.publish("t", *"ab")
        consumer.fin("a")
        assert [] == host.broker.close()
        consumer.channel.finish(consumer.subscriber, [consumer.id_of("b")])

        host.files.crash_after(0)  # with any change to the disk
        host.save_progress()
        host.files.heal()
        host.reopen()
        assert ["b"] == host.consumer(rdy=10).take()


class TestTiming:
    def test_an_idle_broker_asks_for_nothing(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", "a")
        consumer.fin("a")
        host.pass_time(2 * MSG_TIMEOUT_NS)

        assert not host.engine.pump_wanted
        assert host.engine.advance_wanted_ns is None
        assert host.broker.next_deadline_ns() is None

    def test_many_channels_with_deadlines_are_called_in_time(self, host: Host) -> None:
        consumers = [
            host.consumer(channel=f"c{number}", rdy=1, msg_timeout_ns=(number + 1) * SECOND_NS)
            for number in range(20)
        ]
        host.publish("t", "a")
        for consumer in consumers:
            consumer.rdy(0)
        for number in range(20):
            host.pass_time(SECOND_NS)
            timed_out = [each.channel.timeout_count for each in consumers]
            # Up to the grain late: those of this second may still be to come.
            assert timed_out[:number] == [1] * number
            assert timed_out[number + 1 :] == [0] * (19 - number)

    def test_progress_is_to_be_saved_only_when_there_is_some(self, host: Host) -> None:
        consumer = host.consumer(rdy=10)
        host.publish("t", *"abc")
        assert 0 == host.engine.saves_asked

        consumer.fin("a")
        consumer.fin("b")
        assert 1 == host.engine.saves_asked
        host.save_progress()
        consumer.fin("c")
        assert 2 == host.engine.saves_asked


def test_a_broker_on_an_empty_data_path_has_nothing_to_tell(host: Host) -> None:
    broker: Broker = host.broker

    assert {} == broker.topics
    assert [] == broker.issues
    assert broker.health() is None
