"""The receiver on its own, where kombu would not show it at its worst."""

import socket
import threading

from penstock.celery.receiver import Receiver
from penstock.celery.settings import Settings
from penstock.client import ClientConfig
from penstock.common.errors import ClientClosedError


def test_who_subscribes_while_it_is_closed_does_not_wait_for_ever() -> None:
    outcomes: list[Exception] = []

    def subscribe() -> None:
        try:
            receiver.subscribe("queue", "topic", "channel", prefetch_count=1)
        except ClientClosedError as closed:
            outcomes.append(closed)

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        receiver = Receiver(Settings(nsqds=[address], lookupds=[], config=ClientConfig()))
        subscribing = threading.Thread(target=subscribe, daemon=True)
        subscribing.start()
        connected, _ = hanging.accept()
        with connected:
            receiver.close()
            subscribing.join(120)

    assert ["the connection was closed meanwhile"] == list(map(str, outcomes))
