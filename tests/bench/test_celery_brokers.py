from bench.celery_brokers import BROKERS, measure


def test_publishing_and_executing_tasks_are_measured() -> None:
    with BROKERS["nsqd"]() as server:
        publishing, working = measure(server, 200)

    assert publishing.rate > 0
    assert publishing.client_ms > 0
    assert working.rate > 0
