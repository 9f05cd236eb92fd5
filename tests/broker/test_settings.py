from penstock.broker.settings import BrokerSettings
from penstock.common.clock import SECOND_NS


def test_the_defaults_are_those_of_nsqd_but_for_the_requeue_on_disconnect() -> None:
    settings = BrokerSettings()

    assert 10_000 == settings.mem_queue_size
    assert 15 * 60 * SECOND_NS == settings.max_msg_timeout_ns
    assert 0 == settings.max_channel_consumers
    assert settings.requeue_on_disconnect
