"""Existing NSQ clients, unchanged, against the leader of a replicated node."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.interop.test_clients import CLIENTS, consume, leaves_behind, printed_by
from tests.interop.test_discovery import FOLLOWERS, FOUND_SECONDS, TOPIC, Client

from penstock.testing.etcd import has_etcd
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.replicated import FAST_TAKEOVER, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]


@pytest.fixture(scope="module")
def leader() -> Iterator[NsqdProcess]:
    with run_replicated_node() as node:
        yield node.led_by


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic() -> str:
    return f"t-{time.time_ns()}"


def test_client_publishes(client: str, leader: NsqdProcess, topic: str) -> None:
    ours = leader.consumer(topic, "channel", rdy=10)
    printed_by(client, leader.tcp_address, "publish", topic)
    received = ours.messages(4)

    assert [b"single", b"multi-1", b"multi-2", b"deferred"] == [each.body for each in received]


def test_client_finishes_and_requeues(client: str, leader: NsqdProcess, topic: str) -> None:
    bodies = [f"message {number}" for number in range(20)]
    leader.publish(topic, *(body.encode() for body in bodies))
    deliveries = consume(client, leader, topic, "requeue", 40)

    assert sorted((body, attempts) for attempts in (1, 2) for body in bodies) == sorted(
        (each.body, each.attempts) for each in deliveries
    )
    assert leaves_behind(leader, topic, requeue_count=20)


def test_clients_find_the_next_leader() -> None:
    """All of them get every message, before and after a takeover."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(run_nsqlookupd("--broadcast-address=127.0.0.1"))
        flags = [*FAST_TAKEOVER, f"--lookupd-tcp-address={lookupd.tcp_address}"]
        node = stack.enter_context(run_replicated_node(flags=flags))
        leader = node.wait_for_leader()
        node.led_by.post(f"/topic/create?topic={TOPIC}")
        for name in FOLLOWERS:
            node.led_by.post(f"/channel/create?topic={TOPIC}&channel={name}")
        followers = {}
        for name in FOLLOWERS:
            program = f"{name}_follower.{'js' if name == 'nsqjs' else 'py'}"
            followers[name] = Client(program, TOPIC, name, lookupd.http_address)
            stack.callback(followers[name].kill)

        def await_all(bodies: set[str]) -> None:
            for name, follower in followers.items():
                wait_until(
                    lambda follower=follower: bodies <= set(follower.printed()),  # type: ignore[misc]
                    f"all messages with {name}",
                    seconds=FOUND_SECONDS,
                )

        before = {f"before {number}" for number in range(20)}
        node.led_by.publish(TOPIC, *(body.encode() for body in sorted(before)))
        await_all(before)
        # A clean stop: if ansq's connection is reset, ansq hangs.
        node.terminate(leader)
        node.wait_for_leader(not_=leader)
        after = {f"after {number}" for number in range(20)}
        node.led_by.publish(TOPIC, *(body.encode() for body in sorted(after)))
        await_all(before | after)
