"""Faults of a replicated node under load lose no acknowledged message.

A producer publishes to the leader, whoever that is. After the fault, publishing must go on; after
the repair, all members must be in sync, and have equal logs (`ReplicatedNode.stop`).
"""

import time
from collections.abc import Callable

import pytest
from tests.crash.replicated_load import CHANNEL, TOPIC, LedgerProducer, read_channel

from penstock.protocol import commands
from penstock.testing.etcd import has_etcd
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.replicated import ReplicatedNode, run_replicated_node

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]


def follower_of(node: ReplicatedNode) -> str:
    leader = node.wait_for_leader()
    return next(name for name in node.members if name != leader)


def kill_leader(node: ReplicatedNode, producer: LedgerProducer) -> None:
    leader = node.wait_for_leader()
    node.kill(leader)
    node.wait_for_leader(not_=leader)
    producer.await_progress()
    node.start(leader)


def suspend_leader(node: ReplicatedNode, producer: LedgerProducer) -> None:
    """The old leader acknowledges nothing after the takeover, although it does not know of it."""
    leader = node.wait_for_leader()
    with RawClient(node.members[leader].tcp_address) as client:
        client.call(commands.pub(TOPIC, b"x"))
        node.suspend(leader)
        client.send(commands.pub(TOPIC, b"to the old leader"))
        node.wait_for_leader(not_=leader)
        producer.await_progress()
        resumed_at = time.monotonic()
        node.resume(leader)
        with pytest.raises((WireError, DisconnectedError, ConnectionError)):
            client.response()
    producer.await_progress()
    late = [each for each in producer.acknowledgements if each.at > resumed_at]
    assert leader not in {each.member for each in late}


def kill_follower(node: ReplicatedNode, producer: LedgerProducer) -> None:
    follower = follower_of(node)
    node.kill(follower)
    producer.await_progress()
    node.start(follower)


def suspend_follower(node: ReplicatedNode, producer: LedgerProducer) -> None:
    follower = follower_of(node)
    node.suspend(follower)
    producer.await_progress()
    node.resume(follower)


def kill_all_members(node: ReplicatedNode, producer: LedgerProducer) -> None:
    node.kill()
    node.start()
    producer.await_progress()


def restart_etcd(node: ReplicatedNode, producer: LedgerProducer) -> None:
    """The leader goes on without etcd, for longer than its lease."""
    leader = node.wait_for_leader()
    node.etcd.kill()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        producer.await_progress()
    assert node.status(leader)["role"] == "leading"
    node.etcd.start()
    producer.await_progress()


def replace_disk_of_leader(node: ReplicatedNode, producer: LedgerProducer) -> None:
    leader = node.wait_for_leader()
    node.kill(leader)
    node.replace_disk(leader)
    node.start(leader)
    assert node.wait_for_leader() != leader
    producer.await_progress()


def terminate_leader(node: ReplicatedNode, producer: LedgerProducer) -> None:
    leader = node.wait_for_leader()
    node.terminate(leader)
    node.wait_for_leader(not_=leader)
    producer.await_progress()
    node.start(leader)


@pytest.mark.parametrize(
    "fault",
    [
        kill_leader,
        suspend_leader,
        kill_follower,
        suspend_follower,
        kill_all_members,
        restart_etcd,
        replace_disk_of_leader,
        terminate_leader,
    ],
)
def test_a_fault_loses_no_acknowledged_message(
    fault: Callable[[ReplicatedNode, LedgerProducer], None],
) -> None:
    with run_replicated_node() as node:
        node.led_by.post(f"/topic/create?topic={TOPIC}")
        node.led_by.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        with LedgerProducer(node) as producer:
            producer.await_progress()
            fault(node, producer)
            node.wait_in_sync(3)
            producer.await_progress()
        received = read_channel(node, producer.acknowledged)
        in_order = [int(body) for body in dict.fromkeys(received) if body.isdigit()]

        assert set() == producer.acknowledged - set(received)
        assert sorted(in_order) == in_order


def test_a_member_with_damaged_files_fetches_them_again() -> None:
    """It does not lead before it has them, although it was in sync."""
    with run_replicated_node() as node:
        node.led_by.publish(TOPIC, *(b"%d" % number for number in range(200)))
        damaged = follower_of(node)
        node.kill(damaged)
        (segment,) = (node.members[damaged].data_path / "topics" / TOPIC).glob("*.log")
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 0xFF
        segment.write_bytes(content)
        node.kill(node.wait_for_leader())
        node.start(damaged)
        assert damaged != node.wait_for_leader()
        assert "the copy is damaged" in node.members[damaged].log
        received = read_channel(node, {b"%d" % number for number in range(200)})
        node.start()
        node.wait_in_sync(3)

        assert [b"%d" % number for number in range(200)] == received
