"""gnsq, publishing to whichever node takes messages: see test_discovery.py.

    gnsq_roaming_producer.py TOPIC NSQLOOKUPD

It asks nsqlookupd which nodes are there for producers, and goes from one to the next. A node that
does not take a message is left for the next one; only a message that no node takes counts as
refused. It prints the body of each message that was taken, until it is told to end by SIGTERM, and
then how many were refused.
"""

import json
import signal
import sys
from itertools import count
from urllib.request import urlopen

import gevent  # type: ignore[import-untyped]
from gevent import monkey

monkey.patch_all()

import gnsq  # noqa: E402 (gevent comes first)

# gnsq forgets about a connection in more than one way.
FAILURES = (gnsq.errors.NSQException, OSError, KeyError)


class Fleet:
    """A producer for each node there is."""

    def __init__(self, lookupd: str) -> None:
        self._url = f"http://{lookupd}/nodes?for=producer"
        self._producers: dict[str, gnsq.Producer] = {}
        self.refused = 0

    def publish(self, topic: str, body: bytes) -> bool:
        """Whether a node has taken it, of those that there are now."""
        for address in self._addresses():
            try:
                self._producer(address).publish(topic, body, timeout=1)
            except FAILURES:
                self._producers.pop(address).close()
            else:
                self._producers[address] = self._producers.pop(address)  # the others' turn is next
                return True
        self.refused += 1
        return False

    def _addresses(self) -> list[str]:
        with urlopen(self._url, timeout=5) as answer:
            nodes = json.load(answer)["producers"]
        found = [f"{node['broadcast_address']}:{node['tcp_port']}" for node in nodes]
        order = list(self._producers)
        return sorted(found, key=lambda each: order.index(each) if each in order else -1)

    def _producer(self, address: str) -> gnsq.Producer:
        producer = self._producers.get(address)
        if producer is None:
            producer = self._producers[address] = gnsq.Producer(address)
            producer.start()
        return producer


def main(topic: str, lookupd: str) -> None:
    fleet = Fleet(lookupd)
    is_over = gevent.event.Event()
    gevent.signal_handler(signal.SIGTERM, is_over.set)
    for number in count():
        if is_over.is_set():
            break
        body = f"message {number}"
        if fleet.publish(topic, body.encode()):
            print(body, flush=True)
    print(f"refused: {fleet.refused}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
