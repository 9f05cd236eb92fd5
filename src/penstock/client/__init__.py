"""Producers and consumers of NSQ, on asyncio; `penstock.client.blocking` has them without.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")

    async with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        async for message in consumer:
            print(message.body)
            message.finish()

They work with any nsqd. Every error they raise is a `penstock.common.errors.ClientError`.
"""

from penstock.client.config import ClientConfig
from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import Producer

__all__ = ["ClientConfig", "Consumer", "Message", "Producer"]
