"""The catalog of logs against a model: clients that apply partial responses know all logs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.broker.fakes import Host

from penstock.admin_api.models import TopicLogSummary, TopicsLogResponse
from penstock.common.clock import SECOND_NS
from penstock.common.go_json import decode_json
from penstock.net.http_server import DeferredResponse, Response
from penstock.nsqd import log_catalog
from penstock.nsqd.log_catalog import LogCatalog
from penstock.storage import LogSettings, TopicLog

CLIENTS = 3
REMOVED_MAX = 2

topic_names = st.sampled_from(["a", "b", "c", "d", "e#ephemeral"])
clients = st.integers(0, CLIENTS - 1)

State = dict[str, TopicLogSummary]


@dataclass
class Client:
    """A client with its copy of the catalog."""

    token: str = ""
    state: State = field(default_factory=dict)
    waiting: DeferredResponse | None = None

    def apply(self, response: object) -> None:
        assert isinstance(response, Response)
        assert response.status == 200
        changes = decode_json(response.body, TopicsLogResponse)
        if changes.full:
            self.state = {}
            assert [] == changes.removed
        for each in changes.topics:
            assert self.state.get(each.topic) != each
            self.state[each.topic] = each
        for name in changes.removed:
            self.state.pop(name, None)
        self.token = changes.version


class CatalogAgainstAModel(RuleBasedStateMachine):
    """Several clients poll, wait and disconnect, while topics are created, grow, are trimmed and
    deleted. Only a few deletions are remembered, so that some responses are full."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.object(log_catalog, "_COALESCE_SECONDS", 0),
            mock.patch.object(log_catalog, "REMOVED_MAX", REMOVED_MAX),
        ]
        for patch in self.patches:
            patch.start()
        self.loop = asyncio.new_event_loop()
        self.host = Host(log_settings=LogSettings(max_bytes_per_file=150))
        self.catalog = LogCatalog(self.host.broker)
        self.clients = [Client() for _ in range(CLIENTS)]
        self.topics_seen = 0
        self.bodies = 0

    def teardown(self) -> None:
        self.run(self.catalog.close)
        assert all(each.waiting is None for each in self.clients)
        self.loop.close()
        for patch in self.patches:
            patch.stop()

    def run(self, step: Callable[[], None]) -> None:
        """Runs a step, and the timers that it starts."""

        async def run_in_loop() -> None:
            step()
            engine = self.host.engine
            if len(engine.topics_created) > self.topics_seen:
                self.topics_seen = len(engine.topics_created)
                self.catalog.on_change()
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run_in_loop())
        self.check_waiting()

    def check_waiting(self) -> None:
        """A request waits only while nothing changes. Is called before any other request, which
        would find the change and end the wait."""
        for client in self.clients:
            if client.waiting is None:
                continue
            if client.waiting.done():
                client.apply(client.waiting.result())
                client.waiting = None
            assert self.logs() == client.state

    def logs(self) -> State:
        """The state of all logs."""
        state = {}
        for name, topic in self.host.broker.topics.items():
            log = topic.log
            if isinstance(log, TopicLog):
                state[name] = TopicLogSummary(
                    topic=name,
                    log_id=log.log_id,
                    first_seq=log.first_seq,
                    next_seq=log.next_seq,
                    high_watermark=log.next_seq,
                    bytes=log.byte_size,
                )
        return state

    @rule(name=topic_names, count=st.integers(1, 3), is_deferred=st.booleans())
    def publish(self, name: str, count: int, is_deferred: bool) -> None:
        self.bodies += count
        bodies = [f"{self.bodies - number:040}" for number in range(count)]
        defer_ns = 3600 * SECOND_NS if is_deferred else 0
        self.run(lambda: self.host.publish(name, *bodies, defer_ns=defer_ns))

    @rule(name=topic_names)
    def create(self, name: str) -> None:
        def create_channel() -> None:
            self.host.channel(name)

        self.run(create_channel)

    @rule(name=topic_names)
    def delete(self, name: str) -> None:
        if name in self.host.broker.topics:
            self.run(lambda: self.host.broker.delete_topic(name))

    @rule(name=topic_names)
    def create_again(self, name: str) -> None:
        def delete_and_create() -> None:
            self.host.broker.delete_topic(name)
            self.host.broker.topic(name)

        if name in self.host.broker.topics:
            self.run(delete_and_create)

    @rule(name=topic_names)
    def consume_and_trim(self, name: str) -> None:
        """Deletes segments, also in the middle of a log: deferred messages keep theirs."""

        def consume() -> None:
            consumer = self.host.consumer(name, rdy=1000)
            consumer.fin(*consumer.take())
            self.host.save_progress()
            consumer.leave()

        self.run(consume)

    @rule(number=clients)
    def poll(self, number: int) -> None:
        client = self.clients[number]
        if client.waiting is None:
            self.run(lambda: client.apply(self.catalog.respond(client.token)))
            assert self.logs() == client.state

    @rule(number=clients)
    def wait(self, number: int) -> None:
        client = self.clients[number]

        def start() -> None:
            response = self.catalog.respond(client.token, 3600)
            if not isinstance(response, DeferredResponse):
                client.apply(response)
                response = self.catalog.respond(client.token, 3600)
            assert isinstance(response, DeferredResponse)
            client.waiting = response

        if client.waiting is None:
            self.run(start)

    @rule(number=clients)
    def disconnect(self, number: int) -> None:
        client = self.clients[number]
        if client.waiting is not None:
            self.run(client.waiting.on_client_ended)
            assert client.waiting is None
            self.clients[number] = Client()

    @rule()
    def end_waits(self) -> None:
        self.run(self.catalog.end_waits)
        assert all(each.waiting is None for each in self.clients)

    @invariant()
    def a_full_response_is_the_state_of_all_logs(self) -> None:
        other = Client()
        self.run(lambda: other.apply(self.catalog.respond("")))
        assert self.logs() == other.state


TestCatalogAgainstAModel = CatalogAgainstAModel.TestCase
TestCatalogAgainstAModel.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)


def test_segments_deleted_in_the_middle_of_a_log_are_a_change() -> None:
    """Neither the first nor the next sequence number changes."""

    async def check() -> None:
        host = Host(log_settings=LogSettings(max_bytes_per_file=150))
        host.publish("t", "deferred" * 20, defer_ns=3600 * SECOND_NS)
        consumer = host.consumer(rdy=100)
        for number in range(5):
            host.publish("t", f"{number}" * 150)
        catalog = LogCatalog(host.broker)
        client = Client()
        client.apply(catalog.respond(client.token))
        before = client.state["t"]
        waiting = catalog.respond(client.token, 3600)
        assert isinstance(waiting, DeferredResponse)
        consumer.fin(*consumer.take())
        host.save_progress()
        answered = asyncio.Event()
        waiting.set_callback(answered.set)
        await answered.wait()
        client.apply(waiting.result())

        after = client.state["t"]
        assert (before.first_seq, before.next_seq) == (after.first_seq, after.next_seq)
        assert before.bytes > after.bytes

    asyncio.run(asyncio.wait_for(check(), 60))
