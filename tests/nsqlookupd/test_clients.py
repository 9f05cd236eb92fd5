"""Existing clients, unchanged, find an nsqd through our nsqlookupd."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.protocol import lookup_v1
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess

pytestmark = pytest.mark.interop

# Each program takes the address of nsqlookupd and a topic, and prints the bodies that it consumes.
# Each client has its own event loop, so each runs in its own process.
CONSUMERS = {
    "pynsq": """
import sys, nsq
def handle(message):
    print(message.body.decode(), flush=True)
    return True
address, topic = sys.argv[1:]
nsq.Reader(
    topic=topic, channel="channel", lookupd_http_addresses=[address], lookupd_poll_interval=1,
    message_handler=handle,
)
nsq.run()
""",
    "gnsq": """
import sys, gnsq
address, topic = sys.argv[1:]
consumer = gnsq.Consumer(
    topic, "channel", lookupd_http_addresses=[address], lookupd_poll_interval=1
)
@consumer.on_message.connect
def handle(consumer, message):
    print(message.body.decode(), flush=True)
consumer.start()
""",
    "ansq": """
import asyncio, sys
from ansq import create_reader
address, topic = sys.argv[1:]
async def main():
    reader = await create_reader(
        topic=topic, channel="channel", lookupd_http_addresses=[address]
    )
    async for message in reader.messages():
        print(message.body.decode(), flush=True)
        await message.fin()
asyncio.run(main())
""",
}

OPERATOR = """
import sys
from gnsq import LookupdClient
host, port = sys.argv[1].split(":")
client = LookupdClient(host, int(port))
assert client.ping() == b"OK", client.ping()
assert client.info() == {"version": "1.3.0"}, client.info()
client.create_channel("made", "c")
assert "made" in client.topics()["topics"]
assert client.channels("made") == {"channels": ["c"]}
assert client.lookup("made") == {"channels": ["c"], "producers": []}
client.delete_channel("made", "c")
client.delete_topic("made")
assert "made" not in client.topics()["topics"]
client.tombstone_topic("made", "n:1")
assert isinstance(client.nodes()["producers"], list)
"""

CLIENT_SECONDS = 120


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_consumer_finds_its_nsqd(
    nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess, topic: str, client: str
) -> None:
    host, _, port = nsqd.tcp_address.rpartition(":")
    node = nsqlookupd.connect()
    node.identify(broadcast_address=host, tcp_port=int(port))
    node.call(lookup_v1.register(topic))
    nsqd.publish(topic, b"found")

    command = [sys.executable, "-W", "ignore", "-c", CONSUMERS[client]]
    with subprocess.Popen(
        [*command, nsqlookupd.http_address, topic], stdout=subprocess.PIPE
    ) as consumer:
        assert consumer.stdout is not None
        line = consumer.stdout.readline()
        consumer.kill()

    assert b"found\n" == line


def test_gnsq_decodes_every_response(nsqlookupd: NsqlookupdProcess) -> None:
    command = [sys.executable, "-W", "ignore", "-c", OPERATOR, nsqlookupd.http_address]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=CLIENT_SECONDS
    )

    assert 0 == done.returncode, done.stderr
