"""A takeover keeps messages, their ids and positions, topics, channels and progress."""

import http.client
from typing import Any

import pytest
from tests.crash.replicated_load import CHANNEL, TOPIC
from tests.nsqd.history_reading import log_of, messages

from penstock.protocol import commands
from penstock.testing.etcd import has_etcd
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.replicated import FAST_TAKEOVER, ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.skipif(not has_etcd(), reason="needs etcd; `make test` installs it"),
]

RETENTION = "--retention-time=1h"


def fail_over(node: ReplicatedNode) -> NsqdProcess:
    """Kill the leader; returns the next one."""
    leader = node.wait_for_leader()
    node.kill(leader)
    return node.members[node.wait_for_leader(not_=leader)]


def topics_of(nsqd: NsqdProcess) -> dict[str, Any]:
    """Topics and channels, and whether they are paused."""
    found = nsqd.http("GET", "/stats?format=json").json()["topics"]
    return {
        topic["topic_name"]: (
            topic["paused"],
            {each["channel_name"]: each["paused"] for each in topic["channels"]},
        )
        for topic in found
    }


def journal_size(nsqd: NsqdProcess) -> int:
    return (nsqd.data_path / "topics" / TOPIC / "cursors.1").stat().st_size


def test_messages_keep_ids_positions_and_progress() -> None:
    bodies = [b"%d" % number for number in range(100)]
    with run_replicated_node(flags=[*FAST_TAKEOVER, RETENTION]) as node:
        leader = node.led_by
        consumer = leader.consumer(TOPIC, CHANNEL, rdy=60)
        leader.publish(TOPIC, *bodies)
        received = consumer.messages(60)
        consumer.send(commands.rdy(0))
        size = journal_size(leader)
        for message in received[:50]:
            consumer.send(commands.fin(message.id))
        wait_until(
            lambda: all(journal_size(member) > size for member in node.members.values()),
            "the progress to be replicated",
        )
        history, position = messages(leader, TOPIC), log_of(leader, TOPIC)

        follower = fail_over(node)
        again = follower.consumer(TOPIC, CHANNEL, rdy=100)
        delivered = again.messages(50, seconds=30)
        for message in delivered:
            again.send(commands.fin(message.id))
        wait_until(lambda: follower.shows(TOPIC, CHANNEL, depth=0, in_flight_count=0), "the end")

        assert bodies[50:] == [message.body for message in delivered]
        assert [each.id for each in received[50:]] == [each.id for each in delivered[:10]]
        assert history == messages(follower, TOPIC)
        assert position.first_seq == log_of(follower, TOPIC).first_seq
        assert position.next_seq == log_of(follower, TOPIC).next_seq
        assert position.whole["log_id"] == log_of(follower, TOPIC).whole["log_id"]

        follower.publish(TOPIC, b"after")
        last = again.message()
        assert int(last.id, 16) > int(delivered[-1].id, 16)
        again.send(commands.fin(last.id))
        node.start()
        node.wait_in_sync(3)


def test_topics_channels_pauses_and_deferred_messages_survive() -> None:
    with run_replicated_node() as node:
        leader = node.led_by
        for topic in ("kept", "paused", "deleted", "with-channels"):
            leader.post(f"/topic/create?topic={topic}")
        for channel in ("kept", "paused", "deleted"):
            leader.post(f"/channel/create?topic=with-channels&channel={channel}")
        leader.post("/topic/pause?topic=paused")
        leader.post("/channel/pause?topic=with-channels&channel=paused")
        leader.post("/channel/delete?topic=with-channels&channel=deleted")
        leader.post("/topic/delete?topic=deleted")
        leader.post("/pub?topic=kept&defer=3000", b"deferred")
        expected = topics_of(leader)

        follower = fail_over(node)

        assert expected == topics_of(follower)
        assert expected == {
            "kept": (False, {}),
            "paused": (True, {}),
            "with-channels": (False, {"kept": False, "paused": True}),
        }
        message = follower.consumer("kept", "c", rdy=1).message(seconds=30)
        assert b"deferred" == message.body


def test_too_few_members_in_sync_refuse_publishes_and_serve_consumers() -> None:
    with run_replicated_node() as node:
        leader_name = node.wait_for_leader()
        leader = node.members[leader_name]
        consumer = leader.consumer(TOPIC, CHANNEL, rdy=1)
        leader.publish(TOPIC, b"one", b"two")
        first = consumer.message()
        node.kill(*(name for name in node.members if name != leader_name))
        node.wait_in_sync(1)
        with RawClient(leader.tcp_address) as producer, pytest.raises(WireError) as refused:
            producer.call(commands.pub(TOPIC, b"refused"))
        answer = leader.http("POST", f"/pub?topic={TOPIC}", b"refused")
        consumer.send(commands.fin(first.id))
        second = consumer.message(seconds=30)
        consumer.send(commands.fin(second.id))

        assert "E_PUB_FAILED" == refused.value.code
        assert http.client.SERVICE_UNAVAILABLE == answer.status
        assert b"two" == second.body

        node.start()
        node.wait_in_sync(3)
        leader.publish(TOPIC, b"three")
        third = consumer.message(seconds=30)
        assert b"three" == third.body
        consumer.send(commands.fin(third.id))


def test_a_clean_stop_hands_progress_over() -> None:
    with run_replicated_node() as node:
        leader_name = node.wait_for_leader()
        leader = node.members[leader_name]
        consumer = leader.consumer(TOPIC, CHANNEL, rdy=10)
        leader.publish(TOPIC, *(b"%d" % number for number in range(20)))
        finished = consumer.messages(10)
        consumer.send(*(commands.fin(message.id) for message in finished))
        unfinished = consumer.messages(10)  # Now nsqd has processed the FINs.
        node.terminate(leader_name)
        follower = node.members[node.wait_for_leader(not_=leader_name)]
        received = follower.consumer(TOPIC, CHANNEL, rdy=10).messages(10)

        assert {each.id for each in unfinished} == {each.id for each in received}


def test_the_node_id_stays_although_nsqlookupd_lists_the_former_leader() -> None:
    with (
        run_nsqlookupd() as nsqlookupd,
        run_replicated_node(
            flags=[*FAST_TAKEOVER, f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
        ) as node,
    ):
        leader_name = node.wait_for_leader()
        leader = node.members[leader_name]
        leader.post(f"/topic/create?topic={TOPIC}")
        node_id = log_of(leader, TOPIC).whole["node_id"]
        node.suspend(leader_name)
        follower = node.members[node.wait_for_leader(not_=leader_name)]
        wait_until(lambda: f"LOOKUPD({nsqlookupd.tcp_address}): connected" in follower.log, "it")
        follower.publish(TOPIC, b"x")
        message = follower.consumer(TOPIC, CHANNEL, rdy=1).message()

        assert node_id == log_of(follower, TOPIC).whole["node_id"]
        assert node_id == int(message.id, 16) >> 54
        node.resume(leader_name)
        node.wait_in_sync(3)
