"""Consume a topic with ansq from the nodes that nsqlookupd lists; used by test_discovery.py."""

import asyncio
import sys

import ansq


async def follow(topic: str, channel: str, *lookupds: str) -> None:
    reader = await ansq.create_reader(
        topic, channel, lookupd_http_addresses=lookupds, lookupd_poll_interval=1000
    )
    async for message in reader.messages():
        print(message.body.decode(), flush=True)
        await message.fin()


if __name__ == "__main__":
    asyncio.run(follow(*sys.argv[1:]))
