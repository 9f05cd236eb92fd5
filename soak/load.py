"""Publishers and consumers of all types on one nsqd, with a ledger of all messages.

    python -m soak.load '{"nsqds": [...], "rate": 2000, "ca_file": "..."}'

runs until its input ends. Then it stops publishing, waits for outstanding messages, and prints as
JSON how many acknowledged messages never arrived. Errors because nsqd is down, suspended or out of
space are counted; any other error ends the process.

The body of a message is a number. The channel `audit` must deliver each number at least once; the
channel `work` has consumers that are slow, requeue, let messages time out, or vanish.
"""

import asyncio
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count

import uvloop

from penstock.client import ClientConfig, Consumer, Message, Producer
from penstock.common.errors import ClientError, HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.protocol import commands
from penstock.storage.progress import RangeSet

__all__ = ["Account", "Order", "Where"]

TOPICS = ("orders", "clicks")
TICK_SECONDS = 0.05
ANSWERED_SECONDS = 60.0
DRAIN_SECONDS = 90.0
BODY_BYTES = 200

# Share of messages that are published singly; the others use multi-publish.
SINGLE_SHARE, DEFERRED_SHARE, HTTP_SHARE, TLS_SHARE = 0.1, 0.05, 0.02, 0.2
DEFER_SECONDS = (0.05, 3.0)

# Probabilities of an unreliable consumer's actions.
REQUEUE_SHARE, FORGET_SHARE = 0.1, 0.01
MSG_TIMEOUT_SECONDS = 1.0

EXPECTED = (ClientError, HttpRequestError, OSError, asyncio.IncompleteReadError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Where:
    """Addresses of an nsqd."""

    tcp: str
    http: str


@dataclass(frozen=True, slots=True)
class Order:
    """Configuration of the load."""

    nsqds: list[Where]
    rate: int
    """Messages per second, in total."""
    ca_file: str


@dataclass(frozen=True, slots=True)
class Account:
    """Result for one nsqd."""

    acknowledged: int
    audited: int
    """Deliveries to `audit`, including redeliveries."""
    lost: int
    read_back: int
    troubles: dict[str, int]


class Ledger:
    """Acknowledged and delivered numbers of a topic."""

    def __init__(self) -> None:
        self.acknowledged = RangeSet()
        self.received = RangeSet()
        self.deliveries = 0
        self._numbers = count()

    def next_numbers(self, number: int) -> range:
        first = next(self._numbers)
        for _ in range(number - 1):
            next(self._numbers)
        return range(first, first + number)

    def acknowledge(self, numbers: range) -> None:
        self.acknowledged.add(numbers.start, numbers.stop)

    def receive(self, body: bytes) -> None:
        number = int(body[:12])
        self.received.add(number, number + 1)
        self.deliveries += 1

    def lost(self) -> int:
        """Number of acknowledged messages that were not delivered."""
        missing = (self.received.gaps(*stretch) for stretch in self.acknowledged)
        return sum(end - first for gaps in missing for first, end in gaps)

    def size(self) -> int:
        """Number of acknowledged messages."""
        return sum(end - first for first, end in self.acknowledged)


def body_of(number: int) -> bytes:
    return (b"%012d " % number).ljust(BODY_BYTES, b"x")


@dataclass
class NodeLoad:
    """The load on one nsqd."""

    where: Where
    rate: float
    ca_file: str
    ledgers: dict[str, Ledger] = field(default_factory=lambda: {name: Ledger() for name in TOPICS})
    troubles: Counter[str] = field(default_factory=Counter)
    read_back: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._http = HttpClient(connect_timeout_seconds=2, request_timeout_seconds=20)
        self._plain = ClientConfig(publish_timeout=30, reconnect_delay_max=1)
        self._tls = ClientConfig(
            tls_v1=True,
            tls_root_ca_file=self.ca_file,
            snappy=True,
            publish_timeout=30,
            reconnect_delay_max=1,
        )

    def account(self) -> Account:
        ledgers = self.ledgers.values()
        return Account(
            acknowledged=sum(ledger.size() for ledger in ledgers),
            audited=sum(ledger.deliveries for ledger in ledgers),
            lost=sum(ledger.lost() for ledger in ledgers),
            read_back=self.read_back,
            troubles=dict(self.troubles),
        )

    async def run(self) -> None:
        """Run until `is_over`, then until all acknowledged messages have arrived or a timeout."""
        await self._make_channels()
        async with asyncio.TaskGroup() as group:

            def start(*works: Callable[[str], Awaitable[None]]) -> list[asyncio.Task[None]]:
                return [
                    group.create_task(self._keep_at(work, topic))
                    for work in works
                    for topic in TOPICS
                ]

            audits = start(self._audit)
            others = start(
                *(self._consume_over_tls, self._consume_slowly, self._consume_unreliably),
                *(self._vanish, self._read_back),
            )
            others.append(group.create_task(self._keep_at(self._come_and_go, "passing")))
            publishers = start(self._publish, self._publish_over_tls)
            await self.is_over.wait()
            await asyncio.wait(publishers, timeout=ANSWERED_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_came(), DRAIN_SECONDS)
            for task in (*publishers, *others, *audits):
                task.cancel()

    async def _make_channels(self) -> None:
        """Create the channels before the first message, since they get only later messages."""
        for topic in TOPICS:
            for channel in ("audit", "work"):
                query = f"topic={topic}&channel={channel}"
                await self._http.call("POST", f"http://{self.where.http}/topic/create?{query}")
                await self._http.call("POST", f"http://{self.where.http}/channel/create?{query}")

    async def _all_came(self) -> None:
        while any(ledger.lost() for ledger in self.ledgers.values()):  # noqa: ASYNC110 (at the end)
            await asyncio.sleep(0.2)

    async def _keep_at(self, work: Callable[[str], Awaitable[None]], topic: str) -> None:
        """Repeat an action whenever nsqd has ended it."""
        while not self.is_over.is_set() or work == self._audit:
            try:
                await work(topic)
            except EXPECTED as trouble:
                self.troubles[f"{work.__name__.strip('_')}: {type(trouble).__name__}"] += 1
                await asyncio.sleep(0.1)

    # Publishing.

    async def _publish(self, topic: str) -> None:
        share = self.rate / len(TOPICS) * (1 - TLS_SHARE)
        async with Producer(self.where.tcp, config=self._plain) as producer:
            async for number in self._paced(share):
                await self._publish_mixed(producer, topic, number)

    async def _publish_mixed(self, producer: Producer, topic: str, number: int) -> None:
        singles, deferred, by_http = (
            _chance_count(number * share) for share in (SINGLE_SHARE, DEFERRED_SHARE, HTTP_SHARE)
        )
        batch = max(number - singles - deferred - by_http, 1)
        many = self._confirmed(topic, batch, lambda bodies: producer.publish_many(topic, bodies))
        await _all(
            many,
            *(
                self._confirmed(topic, 1, lambda bodies: producer.publish(topic, bodies[0]))
                for _ in range(singles)
            ),
            *(
                self._confirmed(topic, 1, lambda bodies: _defer(producer, topic, bodies[0]))
                for _ in range(deferred)
            ),
            *(
                self._confirmed(topic, 1, lambda bodies: self._post(topic, bodies[0]))
                for _ in range(by_http)
            ),
        )

    async def _publish_over_tls(self, topic: str) -> None:
        async with Producer(self.where.tcp, config=self._tls) as producer:
            async for number in self._paced(self.rate / len(TOPICS) * TLS_SHARE):
                await self._confirmed(
                    topic, max(number, 1), lambda bodies: producer.publish_many(topic, bodies)
                )

    async def _confirmed(
        self, topic: str, number: int, publish: Callable[[list[bytes]], Awaitable[object]]
    ) -> None:
        """Publish messages; they count once nsqd has acknowledged them."""
        numbers = self.ledgers[topic].next_numbers(number)
        await publish([body_of(each) for each in numbers])
        self.ledgers[topic].acknowledge(numbers)

    async def _post(self, topic: str, body: bytes) -> None:
        await self._http.call("POST", f"http://{self.where.http}/pub?topic={topic}", body=body)

    async def _paced(self, rate: float) -> AsyncIterator[int]:
        """The number of messages due, about every `TICK_SECONDS`, until the end."""
        loop = asyncio.get_running_loop()
        due, last = 0.0, loop.time()
        while not self.is_over.is_set():
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            # Messages that were due while nsqd was down are not published later.
            due += rate * min(now - last, 4 * TICK_SECONDS)
            last = now
            if due >= 1:
                yield int(due)
                due -= int(due)

    # Consuming.

    async def _audit(self, topic: str) -> None:
        async with self._consumer(topic, "audit", self._plain, 500) as consumer:
            async for message in consumer:
                self.ledgers[topic].receive(message.body)
                message.finish()

    async def _consume_over_tls(self, topic: str) -> None:
        async with self._consumer(topic, "work", self._tls, 200) as consumer:
            async for message in consumer:
                message.finish()

    async def _consume_slowly(self, topic: str) -> None:
        async with self._consumer(topic, "work", self._plain, 5) as consumer:
            async for message in consumer:
                await asyncio.sleep(0.02)
                message.finish()

    async def _consume_unreliably(self, topic: str) -> None:
        config = ClientConfig(msg_timeout=MSG_TIMEOUT_SECONDS, reconnect_delay_max=1)
        async with self._consumer(topic, "work", config, 50) as consumer:
            async for message in consumer:
                _answer_or_not(message)

    @asynccontextmanager
    async def _consumer(
        self, topic: str, channel: str, config: ClientConfig, in_flight: int
    ) -> AsyncIterator[Consumer]:
        consumer = Consumer(
            topic, channel, nsqd=self.where.tcp, max_in_flight=in_flight, config=config
        )
        async with consumer:
            yield consumer

    async def _vanish(self, topic: str) -> None:
        """A consumer whose machine vanishes with messages in flight."""
        host, _, port = self.where.tcp.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(commands.MAGIC + commands.sub(topic, "work") + commands.rdy(20))
            async with asyncio.timeout(5):
                await reader.readexactly(10 + 4)  # OK, and the start of a message
            await asyncio.sleep(random.uniform(0, 1))
        finally:
            writer.transport.abort()

    # Other client actions.

    async def _read_back(self, topic: str) -> None:
        base = f"http://{self.where.http}"
        log = await self._http.get_json(f"{base}/topic/log?topic={topic}", dict[str, object])
        query = f"topic={topic}&from={log['first_seq']}&limit=2000"
        lines = await self._http.call("GET", f"{base}/topic/messages?{query}")
        self.read_back += lines.count(b"\n")
        await self._http.call("GET", f"{base}/stats?format=json")
        await asyncio.sleep(2)

    async def _come_and_go(self, prefix: str) -> None:
        """Create, use and delete topics."""
        topic = f"{prefix}-{random.randrange(20)}"
        base = f"http://{self.where.http}"
        await self._http.call("POST", f"{base}/topic/create?topic={topic}")
        await self._http.call("POST", f"{base}/channel/create?topic={topic}&channel=c")
        bodies = b"\n".join(body_of(number) for number in range(50))
        await self._http.call("POST", f"{base}/mpub?topic={topic}", body=bodies)
        await asyncio.sleep(random.uniform(0, 0.5))
        await self._http.call("POST", f"{base}/topic/delete?topic={topic}")


def _answer_or_not(message: Message) -> None:
    fate = random.random()
    if fate < REQUEUE_SHARE and message.attempts < 4:
        message.requeue(random.uniform(0, 1))
    elif fate > FORGET_SHARE + REQUEUE_SHARE or message.attempts >= 4:
        message.finish()


async def _defer(producer: Producer, topic: str, body: bytes) -> None:
    await producer.publish(topic, body, defer=random.uniform(*DEFER_SECONDS))


async def _all(*works: Awaitable[None]) -> None:
    """Wait for all tasks; then raise the first exception."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _chance_count(expected: float) -> int:
    """A random integer with this mean."""
    return int(expected) + (random.random() < expected % 1)


async def _run(order: Order) -> None:
    rate = order.rate / len(order.nsqds)
    loads = [NodeLoad(where, rate, order.ca_file) for where in order.nsqds]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.run())
        await asyncio.to_thread(sys.stdin.read)
        for load in loads:
            load.is_over.set()
    print(json.dumps([asdict(load.account()) for load in loads]), flush=True)


if __name__ == "__main__":
    # Lost connections are expected; their effect is counted.
    logging.getLogger("penstock.client").setLevel(logging.CRITICAL)
    given = json.loads(sys.argv[1])
    where = [Where(**each) for each in given["nsqds"]]
    uvloop.run(_run(Order(where, given["rate"], given["ca_file"])))
