"""Test program for gnsq; test_clients.py describes the commands."""

import json
import logging
import sys
import time

import gevent  # type: ignore[import-untyped]
import gevent.queue  # type: ignore[import-untyped]
import gnsq

logging.basicConfig(level=logging.INFO)


def publish(address: str, topic: str) -> None:
    producer = gnsq.Producer(address)
    producer.start()
    assert b"OK" == producer.publish(topic, b"single", timeout=60)
    assert b"OK" == producer.multipublish(topic, [b"multi-1", b"multi-2"])
    assert b"OK" == producer.publish(topic, b"deferred", defer=500)
    producer.close()
    producer.join(timeout=120)


def consume(address: str, topic: str, policy: str, count: int) -> None:
    received: gevent.queue.Queue[gnsq.Message] = gevent.queue.Queue()

    def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        message.enable_async()
        received.put(message)

    consumer = gnsq.Consumer(topic, "channel", address, message_handler=handle, max_in_flight=10)
    consumer.start(block=False)
    for _ in range(count):
        message = received.get()
        report(message)
        answer(message, policy)
    consumer.close()
    consumer.join(timeout=120)


def operate(address: str, topic: str) -> None:
    """Call the operations of gnsq's HTTP client."""
    host, port = address.split(":")
    nsqd = gnsq.NsqdHTTPClient(host, int(port))
    assert b"OK" == nsqd.ping()
    nsqd.create_topic(topic)
    nsqd.create_channel(topic, "channel")
    nsqd.pause_topic(topic)
    nsqd.unpause_topic(topic)
    nsqd.pause_channel(topic, "channel")
    nsqd.unpause_channel(topic, "channel")
    nsqd.publish(topic, b"dropped")
    nsqd.empty_channel(topic, "channel")
    nsqd.publish(topic, b"single")
    nsqd.multipublish(topic, [b"multi-1", b"multi-2"])
    nsqd.multipublish(topic, [b"binary\n1", b"binary\n2"], binary=True)
    nsqd.publish(topic, b"deferred", defer=500)
    shown = {
        "version": nsqd.info()["version"],
        "message_count": nsqd.stats(topic)["topics"][0]["message_count"],
        "text": nsqd.stats(text=True)[:6].decode(),
    }
    print(json.dumps(shown))


def answer(message: gnsq.Message, policy: str) -> None:
    first = message.attempts == 1
    if policy == "requeue" and first:
        message.requeue(time_ms=0, backoff=False)
    elif policy == "defer" and first:
        message.requeue(time_ms=500, backoff=False)
    elif policy == "touch":
        for _ in range(6):
            gevent.sleep(0.8)
            message.touch()
        message.finish()
    elif policy == "finish" or not first:
        message.finish()


def report(message: gnsq.Message) -> None:
    delivery = {
        "body": message.body.decode(),
        "attempts": message.attempts,
        "at": time.time(),
    }
    print(json.dumps(delivery), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address, "operate", topic]:
            operate(address, topic)
        case [address, "publish", topic]:
            publish(address, topic)
        case [address, "consume", topic, policy, count]:
            consume(address, topic, policy, int(count))
