"""A connection that sends without end takes turns with the others.

Each turn ends after one command, on a loop that the clients share, so that the order of messages
depends only on the turns and not on the speed of the machine. `python -m bench.hostile` measures
the latency in practice.
"""

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.nsqd.in_process import connected, serving

from penstock.net.http_server import connection
from penstock.nsqd import tcp
from penstock.protocol import commands
from penstock.protocol.compression import Deflate
from penstock.protocol.frames import FrameReader, MessageFrame
from penstock.testing.waiting import TIMEOUT_SECONDS

ENDED = -1.0
"""Seconds: a turn that is over as soon as it has begun."""

MANY = 2_000

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"


async def read_identify_answer(reader: asyncio.StreamReader) -> dict[str, object]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer: dict[str, object] = json.loads((await reader.readexactly(size))[4:])
    return answer


async def two_bodies(address: str) -> list[bytes]:
    """The first two messages of the topic t, in the order in which nsqd received them."""
    received = FrameReader()
    bodies: list[bytes] = []
    subscribe = commands.MAGIC + commands.sub("t", "c") + commands.rdy(2)
    async with connected(address, subscribe) as (reader, _):
        while len(bodies) < 2:
            received.receive_data(await reader.read(1000))
            while (frame := received.next_frame()) is not None:
                if isinstance(frame, MessageFrame):
                    bodies.append(frame.body)
    return bodies


def publish(kind: str, topic: str, body: bytes) -> bytes:
    if kind == "HTTP":
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body
    return commands.pub(topic, body)


@pytest.mark.parametrize("kind", ["plain", "deflate", "HTTP"])
def test_a_client_is_served_while_another_sends_endless_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(connection if kind == "HTTP" else tcp, "TURN_SECONDS", ENDED)
    opening = b"" if kind == "HTTP" else commands.MAGIC
    first, many = (PING, PING) if kind == "HTTP" else (commands.pub("u", b"x"), commands.nop())

    async def scene() -> list[bytes]:
        async with asyncio.timeout(TIMEOUT_SECONDS), serving(tmp_path) as nsqd:
            assert nsqd.tcp is not None
            assert nsqd.http is not None
            address = nsqd.http.address if kind == "HTTP" else nsqd.tcp.address
            async with (
                connected(address, opening) as (reader, endless),
                connected(address, opening) as (_, other),
            ):
                flood = first + many * MANY + publish(kind, "t", b"the last of many")
                if kind == "deflate":
                    endless.write(commands.identify({"feature_negotiation": True, "deflate": True}))
                    assert (await read_identify_answer(reader))["deflate"]
                    await reader.read(1000)  # OK: deflate starts here
                    flood = Deflate().encode(flood)
                endless.write(flood)
                await reader.read(1)
                other.write(publish(kind, "t", b"the other client's"))
                return await two_bodies(nsqd.tcp.address)

    assert [b"the other client's", b"the last of many"] == asyncio.run(scene())


def test_compression_starts_in_a_write_after_the_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients treat data that is read together with the response as uncompressed."""
    monkeypatch.setattr(tcp, "BEFORE_COMPRESSION_SECONDS", 0.3)

    async def scene() -> float:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            serving(tmp_path, http_address="") as nsqd,
        ):
            assert nsqd.tcp is not None
            identify = commands.identify({"feature_negotiation": True, "snappy": True})
            began = time.monotonic()
            async with connected(nsqd.tcp.address, commands.MAGIC + identify) as (reader, _):
                assert (await read_identify_answer(reader))["snappy"]
                await reader.read(1)
                return time.monotonic() - began

    assert 0.29 <= asyncio.run(scene())
