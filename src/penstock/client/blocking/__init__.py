"""Producers and consumers without an event loop: for scripts, threads and Spark's executors.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"one")

    with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        for message in consumer:
            print(message.body)
            message.finish()

They use plain sockets, start no thread, and speak through the same `penstock.wire.client` as those
on asyncio. A `ClientConfig` can be pickled and sent to where it is needed.
"""

from penstock.client.blocking.consumer import Consumer
from penstock.client.blocking.producer import Producer
from penstock.client.config import ClientConfig
from penstock.client.message import Message

__all__ = ["ClientConfig", "Consumer", "Message", "Producer"]
