"""Publish with gnsq to all nodes that accept messages; used by test_discovery.py.

    gnsq_roaming_producer.py TOPIC NSQLOOKUPD

The program asks nsqlookupd for the nodes and uses them in turn. If a node refuses a message, it
tries the next one; a message counts as refused only if all nodes refuse it. It prints the body of
each accepted message, and after SIGTERM the number of refused ones.
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

# gnsq reports a lost connection by different exceptions.
FAILURES = (gnsq.errors.NSQException, OSError, KeyError)


class RoundRobinProducer:
    """One producer for each node."""

    def __init__(self, lookupd: str) -> None:
        self._url = f"http://{lookupd}/nodes?for=producer"
        self._producers: dict[str, gnsq.Producer] = {}
        self.refused = 0

    def publish(self, topic: str, body: bytes) -> bool:
        """Returns whether a node has accepted the message."""
        for address in self._addresses():
            try:
                self._producer(address).publish(topic, body, timeout=1)
            except FAILURES:
                self._producers.pop(address).close()
            else:
                self._producers[address] = self._producers.pop(
                    address
                )  # moved to the end of the rotation
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
    producer = RoundRobinProducer(lookupd)
    is_over = gevent.event.Event()
    gevent.signal_handler(signal.SIGTERM, is_over.set)
    for number in count():
        if is_over.is_set():
            break
        body = f"message {number}"
        if producer.publish(topic, body.encode()):
            print(body, flush=True)
    print(f"refused: {producer.refused}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
