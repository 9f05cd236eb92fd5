"""pynsq, doing what the interop tests ask of every client: see test_clients.py."""

import asyncio
import json
import logging
import sys
import time
from functools import partial

import nsq

logging.basicConfig(level=logging.INFO)


async def publish(address: str, topic: str) -> None:
    writer = nsq.Writer([address])
    while not writer.conns:  # noqa: ASYNC110 (it has no event for this)
        await asyncio.sleep(0.01)
    for command in (
        partial(writer.pub, topic, b"single"),
        partial(writer.mpub, topic, [b"multi-1", b"multi-2"]),
        partial(writer.dpub, topic, 500, b"deferred"),
    ):
        answer = asyncio.get_running_loop().create_future()
        command(callback=lambda _connection, data, answer=answer: answer.set_result(data))
        assert b"OK" == await answer


async def consume(address: str, topic: str, policy: str, count: int) -> None:
    received: asyncio.Queue[nsq.Message] = asyncio.Queue()

    def handle(message: nsq.Message) -> None:
        message.enable_async()
        received.put_nowait(message)

    reader = nsq.Reader(
        topic, "channel", message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=10
    )
    for _ in range(count):
        message = await received.get()
        report(message)
        await answer(message, policy)
    reader.close()


async def answer(message: nsq.Message, policy: str) -> None:
    first = message.attempts == 1
    if policy == "requeue" and first:
        message.requeue(time_ms=0, backoff=False)
    elif policy == "defer" and first:
        message.requeue(time_ms=500, backoff=False)
    elif policy == "touch":
        for _ in range(2):
            await asyncio.sleep(0.7)
            message.touch()
        message.finish()
    elif policy == "finish" or not first:
        message.finish()


def report(message: nsq.Message) -> None:
    delivery = {"body": message.body.decode(), "attempts": message.attempts, "at": time.time()}
    print(json.dumps(delivery), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address, "publish", topic]:
            asyncio.run(publish(address, topic))
        case [address, "consume", topic, policy, count]:
            asyncio.run(consume(address, topic, policy, int(count)))
