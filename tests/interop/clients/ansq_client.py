"""Test program for ansq; test_clients.py describes the commands."""

import asyncio
import json
import logging
import sys
import time

import ansq
from ansq.http import NSQDHTTPWriter
from ansq.tcp.types import NSQMessage

logging.basicConfig(level=logging.INFO)


async def publish(address: str, topic: str) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    for command in (
        writer.pub(topic, b"single"),
        writer.mpub(topic, b"multi-1", b"multi-2"),
        writer.dpub(topic, b"deferred", 500),
    ):
        answer = await command
        assert answer is not None
        assert b"OK" == answer.body
    await writer.close()


async def consume(address: str, topic: str, policy: str, count: int) -> None:
    # ansq uses the timeout that it requests, even if nsqd answers with another one.
    features = ansq.ConnectionFeatures(msg_timeout=4000)
    reader = await ansq.create_reader(
        topic,
        "channel",
        nsqd_tcp_addresses=[address],
        connection_options=ansq.ConnectionOptions(features=features),
    )
    for _ in range(count):
        message = await reader.wait_for_message()
        assert message is not None
        report(message)
        await answer(message, policy)
    await reader.close()


async def operate(address: str, topic: str) -> None:
    """Call the operations of ansq's HTTP client."""
    host, port = address.split(":")
    nsqd = NSQDHTTPWriter(host, int(port))
    assert "OK" == await nsqd.ping()
    await nsqd.create_topic(topic)
    await nsqd.create_channel(topic, "channel")
    await nsqd.topic_pause(topic)
    await nsqd.topic_unpause(topic)
    await nsqd.pause_channel("channel", topic)
    await nsqd.unpause_channel("channel", topic)
    await nsqd.pub(topic, "single")
    await nsqd.mpub(topic, "multi-1", "multi-2")
    info, stats = await nsqd.info(), await nsqd.stats()
    assert isinstance(info, dict)
    assert isinstance(stats, dict)
    counts = {each["topic_name"]: each["message_count"] for each in stats["topics"]}
    print(json.dumps({"version": info["version"], "message_count": counts[topic]}))
    await nsqd.close()


async def answer(message: NSQMessage, policy: str) -> None:
    first = message.attempts == 1
    if policy == "requeue" and first:
        await message.req(0)
    elif policy == "defer" and first:
        await message.req(500)
    elif policy == "touch":
        for _ in range(6):
            await asyncio.sleep(0.8)
            await message.touch()
        await message.fin()
    elif policy == "finish" or not first:
        await message.fin()


def report(message: NSQMessage) -> None:
    delivery = {
        "body": message.body.decode(),
        "attempts": message.attempts,
        "at": time.time(),
    }
    print(json.dumps(delivery), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address, "operate", topic]:
            asyncio.run(operate(address, topic))
        case [address, "publish", topic]:
            asyncio.run(publish(address, topic))
        case [address, "consume", topic, policy, count]:
            asyncio.run(consume(address, topic, policy, int(count)))
