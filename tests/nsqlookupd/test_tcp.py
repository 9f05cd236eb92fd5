"""The TCP port of the running program: responses, log lines, and hostile clients."""

import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdProcess, RawLookupClient, run_nsqlookupd
from penstock.testing.waiting import wait_until


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def identify(**fields: object) -> bytes:
    stock = {"broadcast_address": "n", "tcp_port": 1, "http_port": 2, "version": "v"}
    return lookup_v1.identify({**stock, **fields})


def refusals(nsqlookupd: NsqlookupdProcess, reason: str) -> int:
    page = nsqlookupd.http("GET", "/metrics").body.decode()
    found = re.search(rf'nsqlookupd_refusals_total{{reason="{reason}"}} (\d+)', page)
    assert found
    return int(found[1])


def test_the_response_to_identify(nsqlookupd: NsqlookupdProcess) -> None:
    answer = nsqlookupd.connect().call(identify())
    http_port, tcp_port = (
        address.rpartition(":")[2] for address in (nsqlookupd.http_address, nsqlookupd.tcp_address)
    )

    assert (
        f'{{"broadcast_address":"lookup.example","hostname":"{os.uname().nodename}",'
        f'"http_port":{http_port},"tcp_port":{tcp_port},"version":"1.3.0"}}'
    ).encode() == answer


def test_the_response_to_identify_with_a_node_id() -> None:
    with run_nsqlookupd() as nsqlookupd:
        first = nsqlookupd.connect().identify(broadcast_address="a", node_id=5)
        second = nsqlookupd.connect().identify(broadcast_address="b", node_id=9)
        same = nsqlookupd.connect().identify(broadcast_address="c", node_id=5)
        again = nsqlookupd.connect().identify(broadcast_address="b", node_id=9)
        stock = nsqlookupd.connect().identify(broadcast_address="d")

    assert ([], None) == (first["used_node_ids"], first.get("node_id_used_by"))
    assert ([5], None) == (second["used_node_ids"], second.get("node_id_used_by"))
    assert ([5, 9], "a:4151") == (same["used_node_ids"], same["node_id_used_by"])
    assert ([5], None) == (again["used_node_ids"], again.get("node_id_used_by"))
    assert list(same) == sorted(same)
    assert {"broadcast_address", "hostname", "http_port", "tcp_port", "version"} == stock.keys()


def test_the_leader_of_a_replicated_node_replaces_earlier_leaders() -> None:
    with run_nsqlookupd() as nsqlookupd:

        def lead(address: str, node: str, epoch: int) -> tuple[RawLookupClient, Any]:
            client = nsqlookupd.connect()
            fields = {"cluster": "shop", "node": node, "epoch": epoch, "node_id": 5}
            response = client.identify(broadcast_address=address, **fields)
            client.call(lookup_v1.register("orders", "billing"))
            return client, response

        first, _ = lead("a", "n1", 3)
        other, collision = lead("b", "n2", 1)
        assert "a:4151" == collision["node_id_used_by"]
        assert ["a", "b"] == nsqlookupd.found("orders")

        _, response = lead("c", "n1", 4)
        assert "b:4151" == response["node_id_used_by"]
        assert ["b", "c"] == nsqlookupd.found("orders")
        with pytest.raises(ConnectionError):
            first.call(lookup_v1.ping())
        assert b"OK" == other.call(lookup_v1.ping())

        # The old leader may register once more before it learns of the new one.
        _, again = lead("a", "n1", 3)
        assert "b:4151" == again["node_id_used_by"]
        assert ["b", "c", "a"] == nsqlookupd.found("orders")


def test_an_invalid_epoch_is_ignored() -> None:
    with run_nsqlookupd() as nsqlookupd:
        fields: dict[str, object] = {"cluster": "shop", "node": "n1"}
        nsqlookupd.connect().identify(broadcast_address="a", **fields, epoch="x")
        nsqlookupd.connect().identify(broadcast_address="b", cluster=7, node=[], epoch=None)
        listed = nsqlookupd.http("GET", "/nodes").json()["producers"]

    assert ["a", "b"] == [each["broadcast_address"] for each in listed]


def test_commands_in_pieces_of_any_size_are_answered_in_order(
    nsqlookupd: NsqlookupdProcess, topic: str
) -> None:
    peer = nsqlookupd.connect()
    for at in range(0, len(data := b"PING\n" + identify() + b"REGISTER " + topic.encode()), 7):
        peer.send(data[at : at + 7])
    peer.send(b" c\nPING\n")

    answers = [peer.response() for _ in range(4)]

    assert [b"OK", b"OK", b"OK"] == [answers[0], *answers[2:]]
    assert ["n"] == nsqlookupd.found(topic)


REFUSED = [
    (b"", b"  V2", b"E_BAD_PROTOCOL"),
    (b"", b"GET / HTTP/1.1\r\n\r\n", b"E_BAD_PROTOCOL"),
    (lookup_v1.MAGIC, b"HELLO\n", b"E_INVALID invalid command HELLO"),
    (lookup_v1.MAGIC, b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (lookup_v1.MAGIC, b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY body size -1 out"),
    (lookup_v1.MAGIC, b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body size 2147483647"),
    (lookup_v1.MAGIC, identify(http_port=0), b"E_BAD_BODY IDENTIFY missing fields"),
    (lookup_v1.MAGIC, b"x" * 1_000_000, b"E_INVALID no newline within 16384 bytes"),
]


@pytest.mark.parametrize(("magic", "sent", "error"), REFUSED)
def test_a_refused_client_can_read_the_error(
    nsqlookupd: NsqlookupdProcess, magic: bytes, sent: bytes, error: bytes
) -> None:
    before = refusals(nsqlookupd, "protocol")
    peer = nsqlookupd.connect(magic=magic)
    peer.send(sent)

    told = peer.read_to_end()

    assert sized(told[4:]) == told
    assert told[4:].startswith(error)
    assert before + 1 == refusals(nsqlookupd, "protocol")
    assert f"- {error.decode()}" in nsqlookupd.log


def test_commands_before_an_error_get_their_responses(nsqlookupd: NsqlookupdProcess) -> None:
    peer = nsqlookupd.connect()
    peer.send(b"PING\nPING\nPONG\nPING\n")

    told = peer.read_to_end()

    assert lookup_v1.OK * 2 + sized(b"E_INVALID invalid command PONG") == told


def test_an_incomplete_body_is_refused(nsqlookupd: NsqlookupdProcess) -> None:
    peer = nsqlookupd.connect()
    peer.send(identify()[:-1])
    peer.end()

    assert sized(b"E_BAD_BODY IDENTIFY failed to read body") == peer.read_to_end()


def test_a_refused_node_is_unregistered_at_once(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer = nsqlookupd.node("a")
    peer.call(lookup_v1.register(topic))

    with pytest.raises(ProtocolError, match="E_BAD_TOPIC REGISTER topic name '!' is not valid"):
        peer.call(lookup_v1.register("!"))

    assert [] == nsqlookupd.found(topic)


def test_a_disconnected_node_is_unregistered_and_its_topics_remain(
    nsqlookupd: NsqlookupdProcess, topic: str
) -> None:
    peer = nsqlookupd.node("a")
    peer.call(lookup_v1.register(topic, "c"))
    there = nsqlookupd.found(topic)
    peer.close()
    wait_until(lambda: not nsqlookupd.found(topic), "the node to be gone")

    answer = nsqlookupd.http("GET", f"/lookup?topic={topic}")

    assert ["a"] == there
    assert b'{"channels":["c"],"producers":[]}' == answer.body


def test_actions_of_a_node_are_logged(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer = nsqlookupd.node("a", version="v9")
    peer.call(lookup_v1.register(topic, "c"))
    peer.call(lookup_v1.unregister(topic, "c"))
    peer.call(lookup_v1.register(topic, "d"))
    peer.call(lookup_v1.unregister(topic))
    peer.call(lookup_v1.ping())
    address = peer.address
    peer.close()
    last = f"DB: client({address}) UNREGISTER category:client key: subkey:"
    wait_until(lambda: last in nsqlookupd.log, "the end of the node to be logged")

    lines = [line for line in nsqlookupd.log.splitlines() if address in line]
    said = [re.sub(r".*(INFO|WARNING): |last ping \d.*s", "", line) for line in lines]

    assert [
        f"TCP: new client({address})",
        f"CLIENT({address}): IDENTIFY Address:a TCP:4150 HTTP:4151 Version:v9",
        f"DB: client({address}) REGISTER category:client key: subkey:",
        f"DB: client({address}) REGISTER category:channel key:{topic} subkey:c",
        f"DB: client({address}) REGISTER category:topic key:{topic} subkey:",
        f"DB: client({address}) UNREGISTER category:channel key:{topic} subkey:c",
        f"DB: client({address}) REGISTER category:channel key:{topic} subkey:d",
        f"client({address}) unexpected UNREGISTER category:channel key:{topic} subkey:d",
        f"DB: client({address}) UNREGISTER category:topic key:{topic} subkey:",
        f"CLIENT({address}): pinged ()",
        f"PROTOCOL(V1): [{address}] exiting ioloop",
        last,
    ] == said


# Hostile clients.


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"  V",
        b"  V1",
        b"  V1PING\n",
        b"  V1PIN",
        b"  V1" + identify()[:20],
        b"  V1" + identify() + b"REGISTER",
    ],
)
def test_an_unfinished_command_times_out(sent: bytes) -> None:
    with run_nsqlookupd("--greeting-timeout=200ms", "--command-timeout=200ms") as nsqlookupd:
        peer = RawLookupClient(nsqlookupd.tcp_address)
        peer.send(sent)
        peer.read_to_end()

        assert 1 == refusals(nsqlookupd, "timeout")
        assert f"ERROR: [{peer.address}] - i/o timeout" in nsqlookupd.log
        peer.close()


def test_single_bytes_do_not_extend_the_timeout() -> None:
    with run_nsqlookupd("--command-timeout=200ms") as nsqlookupd:
        peer = nsqlookupd.connect()

        def is_cut_off() -> bool:
            try:
                peer.send(b"x")
            except OSError:
                return True
            return False

        wait_until(is_cut_off, "the peer to be given up")

        assert 1 == refusals(nsqlookupd, "timeout")


def test_a_client_that_does_not_read_times_out() -> None:
    with run_nsqlookupd("--command-timeout=300ms") as nsqlookupd:
        peer = nsqlookupd.connect()

        def is_cut_off() -> bool:
            try:
                peer.send(lookup_v1.ping() * 10_000)
            except OSError:
                return True
            return False

        wait_until(is_cut_off, "the peer to be given up")

        assert 1 == refusals(nsqlookupd, "timeout")


def test_a_node_may_be_silent_between_commands() -> None:
    with run_nsqlookupd("--greeting-timeout=3s", "--command-timeout=3s") as nsqlookupd:
        node, silent = nsqlookupd.node("a"), nsqlookupd.connect()
        node.call(lookup_v1.register("t"))
        silent.read_to_end()  # the node has now been silent for as long

        assert ["a"] == nsqlookupd.found("t")
        assert b"OK" == node.call(lookup_v1.ping())


def test_a_topic_over_the_limit_is_refused_and_the_connection_stays() -> None:
    with run_nsqlookupd("--max-topics=1", "--max-channels-per-topic=1") as nsqlookupd:
        node = nsqlookupd.node("a")
        node.call(lookup_v1.register("t", "c"))

        for topic, channel in (("u", ""), ("t", "d")):
            with pytest.raises(ProtocolError, match="E_REGISTER_FAILED REGISTER failed too many"):
                node.call(lookup_v1.register(topic, channel))

        assert b"OK" == node.call(lookup_v1.register("t", "c"))
        assert 2 == refusals(nsqlookupd, "limits")
        create = nsqlookupd.http("POST", "/topic/create?topic=u")
        assert (503, {"message": "LIMIT_REACHED"}) == (create.status, create.json())


def keepalive_seconds(nsqlookupd: NsqlookupdProcess, peer: RawLookupClient) -> float:
    """Seconds until the kernel probes the client, from its table of connections."""
    ports = [int(address.rpartition(":")[2]) for address in (nsqlookupd.tcp_address, peer.address)]
    for row in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = row.split()
        if ports == [int(end.rpartition(":")[2], 16) for end in (local, remote)]:
            kind, ticks = timer.split(":")
            return int(ticks, 16) / 100 if kind == "02" else float("inf")
    return float("nan")


def test_tcp_keepalive_is_on(nsqlookupd: NsqlookupdProcess) -> None:
    node = nsqlookupd.node("n")

    wait_until(lambda: keepalive_seconds(nsqlookupd, node) <= 15, "the kernel to probe the peer")


def test_connections_are_limited() -> None:
    with run_nsqlookupd("--max-connections=2") as nsqlookupd:
        first, second = nsqlookupd.node("a"), nsqlookupd.node("b")
        third = RawLookupClient(nsqlookupd.tcp_address)
        refused = third.read_to_end()
        third.close()
        second.close()
        wait_until(lambda: b'{protocol="tcp"} 1' in nsqlookupd.http("GET", "/metrics").body, "room")

        told = b"E_TOO_MANY_CONNECTIONS too many connections, the limit is 2"
        assert sized(told) == refused
        assert 1 == refusals(nsqlookupd, "connections")
        assert b"OK" == first.call(lookup_v1.ping())
        assert b"OK" == nsqlookupd.connect().call(lookup_v1.ping())
