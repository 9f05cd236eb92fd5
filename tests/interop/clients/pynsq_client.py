"""Test program for pynsq; test_clients.py describes the commands.

It works around two faults of pynsq's snappy. If a chunk is incomplete, pynsq raises an exception
that Tornado no longer understands as "try again"; `recv` replaces it. And pynsq may leave
decompressed data unread until more data comes; frequent heartbeats make it continue.
"""

import asyncio
import errno
import json
import logging
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import nsq
from nsq.snappy_socket import SnappySocket

logging.basicConfig(level=logging.INFO)


def features() -> dict[str, object]:
    """The options to negotiate, with pynsq's names."""
    asked = json.loads(os.environ.get("NSQ_FEATURES", "{}"))
    tls = {"ca": "ca_certs", "cert": "certfile", "key": "keyfile"}
    options = {tls[name]: asked.pop(name) for name in tls if name in asked}
    if options:
        asked["tls_options"] = {**options, "ssl_version": ssl.PROTOCOL_TLS_CLIENT}
    if "snappy" in asked:
        asked["heartbeat_interval"] = 1
    return {"tls_v1" if name == "tls" else name: value for name, value in asked.items()}


def recv(snappy: SnappySocket, size: int, method: Callable[[int], bytes]) -> object:
    """Raise the exception that Tornado expects if a chunk is incomplete."""
    try:
        return flawed_recv(snappy, size, method)
    except OSError as error:
        if error.args != (errno.EWOULDBLOCK,):
            raise
        if isinstance(snappy._socket, ssl.SSLSocket):
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ) from None
        raise BlockingIOError from None


flawed_recv, SnappySocket._recv = SnappySocket._recv, recv


async def connected(address: str) -> nsq.Writer:
    writer = nsq.Writer([address], **features())
    while not writer.conns:  # noqa: ASYNC110 (pynsq has no event for this)
        await asyncio.sleep(0.01)
    return writer


async def run(command: Callable[..., object]) -> None:
    answer = asyncio.get_running_loop().create_future()
    command(callback=lambda _connection, data: answer.set_result(data))
    data = await answer
    assert b"OK" == data, data


async def publish(address: str, topic: str) -> None:
    writer = await connected(address)
    await run(partial(writer.pub, topic, b"single"))
    await run(partial(writer.mpub, topic, [b"multi-1", b"multi-2"]))
    await run(partial(writer.dpub, topic, 500, b"deferred"))


async def relay(address: str, source: str, destination: str, count: int) -> None:
    writer = await connected(address)
    async for message in received(address, source, count):
        await run(partial(writer.pub, destination, message.body))
        message.finish()


async def consume(address: str, topic: str, policy: str, count: int) -> None:
    async for message in received(address, topic, count):
        report(message)
        await answer(message, policy)


async def received(address: str, topic: str, count: int) -> AsyncIterator[nsq.Message]:
    messages: asyncio.Queue[nsq.Message] = asyncio.Queue()

    def handle(message: nsq.Message) -> None:
        message.enable_async()
        messages.put_nowait(message)

    reader = nsq.Reader(
        topic,
        "channel",
        message_handler=handle,
        nsqd_tcp_addresses=[address],
        max_in_flight=10,
        **features(),
    )
    for _ in range(count):
        yield await messages.get()
    reader.close()


async def answer(message: nsq.Message, policy: str) -> None:
    first = message.attempts == 1
    if policy == "requeue" and first:
        message.requeue(time_ms=0, backoff=False)
    elif policy == "defer" and first:
        message.requeue(time_ms=500, backoff=False)
    elif policy == "touch":
        for _ in range(6):
            await asyncio.sleep(0.8)
            message.touch()
        message.finish()
    elif policy == "finish" or not first:
        message.finish()


def report(message: nsq.Message) -> None:
    delivery = {
        "body": message.body.decode(),
        "attempts": message.attempts,
        "at": time.time(),
    }
    print(json.dumps(delivery), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address, "publish", topic]:
            asyncio.run(publish(address, topic))
        case [address, "relay", source, destination, count]:
            asyncio.run(relay(address, source, destination, int(count)))
        case [address, "consume", topic, policy, count]:
            asyncio.run(consume(address, topic, policy, int(count)))
