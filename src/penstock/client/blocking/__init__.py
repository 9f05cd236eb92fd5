"""Blocking producers and consumers, for scripts, threads and Spark executors.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"one")

    with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        for message in consumer:
            print(message.body)
            message.finish()

They use plain sockets and start no threads. A `ClientConfig` can be pickled, for example to send it
to Spark executors. Errors are those of `penstock.client`.
"""

from penstock.client.blocking.consumer import Consumer
from penstock.client.blocking.producer import Producer
from penstock.client.config import ClientConfig
from penstock.client.message import Message

__all__ = ["ClientConfig", "Consumer", "Message", "Producer"]
