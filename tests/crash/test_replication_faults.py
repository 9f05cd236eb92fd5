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
from penstock.testing.replicated import FAST_TAKEOVER, ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

SMALL_SEGMENTS = (*FAST_TAKEOVER, "--max-bytes-per-file=4096")

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


def damage_first_segment(node: ReplicatedNode, member: str) -> None:
    """Change a byte in the middle of the oldest segment of a topic."""
    segment = min((node.members[member].data_path / "topics" / TOPIC).glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))


def publish_several_segments(node: ReplicatedNode) -> list[bytes]:
    bodies = [b"%d" % number for number in range(300)]
    for at in range(0, len(bodies), 20):
        node.led_by.publish(TOPIC, *bodies[at : at + 20])
    return bodies


def test_damage_that_only_a_new_follower_reads_is_repaired_from_another_member() -> None:
    """No client reads the damaged segment of the leader, but an empty member must copy it."""
    with run_replicated_node(flags=SMALL_SEGMENTS) as node:
        leader = node.wait_for_leader()
        expected = publish_several_segments(node)
        empty = follower_of(node)
        node.kill(empty)
        wait_until(lambda: empty not in node.in_sync(), "two members in sync")
        node.replace_disk(empty)
        damage_first_segment(node, leader)
        node.start(empty)
        node.wait_for_leader(not_=leader)
        node.wait_in_sync(3)
        received = read_channel(node, set(expected))

        assert expected == received


def test_damage_of_the_only_copy_does_not_keep_followers_away() -> None:
    """The messages in the damaged bytes are lost; all others are copied."""
    flags = (*SMALL_SEGMENTS, "--min-in-sync=1")
    with run_replicated_node(("a", "b"), flags) as node:
        leader, empty = node.wait_for_leader(), follower_of(node)
        expected = publish_several_segments(node)
        node.kill(empty)
        wait_until(lambda: [leader] == node.in_sync(), "one member in sync")
        node.replace_disk(empty)
        damage_first_segment(node, leader)
        node.start(empty)
        node.wait_in_sync(2)
        kept = [body for body in expected if body not in expected[:40]]
        received = read_channel(node, set(kept))

        assert set(kept) <= set(received)
