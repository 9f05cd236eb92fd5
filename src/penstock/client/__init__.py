"""NSQ producers and consumers for asyncio; `penstock.client.blocking` has the blocking ones.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")

    async with Consumer("orders", "billing", nsqd="127.0.0.1:4150") as consumer:
        async for message in consumer:
            print(message.body)
            message.finish()

Both work with any nsqd. Invalid settings raise ConfigError; all other errors are a ClientError.
"""

from penstock.client.config import ClientConfig
from penstock.client.consumer import Consumer
from penstock.client.message import Message
from penstock.client.producer import Producer
from penstock.common.errors import (
    ClientClosedError,
    ClientError,
    ConfigError,
    NotConfirmedError,
    NotConnectedError,
    QueueFullError,
    RefusedError,
)

__all__ = [
    "ClientClosedError",
    "ClientConfig",
    "ClientError",
    "ConfigError",
    "Consumer",
    "Message",
    "NotConfirmedError",
    "NotConnectedError",
    "Producer",
    "QueueFullError",
    "RefusedError",
]
