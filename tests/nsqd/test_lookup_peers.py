"""Registration with nsqlookupds, and the lookup of a new topic's channels."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.nsqd import scripted_lookupd as script
from tests.nsqd.auth_server import AuthServer
from tests.nsqd.auth_server import auth_server as http_server
from tests.nsqd.scripted_lookupd import ScriptedLookupd, scripted_lookupd

from penstock.nsqd.lookup_peer import REQUESTS_MAX
from penstock.protocol import commands
from penstock.protocol.lookup_v1 import Event, IdentifyPeer, Register
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.raw_client import RawClient
from penstock.testing.waiting import wait_until


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd("--broadcast-address=127.0.0.1") as process:
        yield process


@pytest.fixture(scope="module")
def nsqd_alone() -> Iterator[NsqdProcess]:
    with run_nsqd() as nsqd:
        yield nsqd


@contextmanager
def run_node(*lookupds: Any, flags: tuple[str, ...] = ()) -> Iterator[NsqdProcess]:
    """An nsqd that registers with these nsqlookupds."""
    addresses = [
        each.address if isinstance(each, ScriptedLookupd) else each.tcp_address for each in lookupds
    ]
    with run_nsqd(
        "--broadcast-address=127.0.0.1",
        *(f"--lookupd-tcp-address={address}" for address in addresses),
        *flags,
    ) as nsqd:
        yield nsqd


def tcp_port(nsqd: NsqdProcess) -> int:
    return int(nsqd.tcp_address.rpartition(":")[2])


def producers(nsqlookupd: NsqlookupdProcess, topic: str) -> list[dict[str, Any]]:
    found = nsqlookupd.http("GET", f"/lookup?topic={topic}").json()
    listed: list[dict[str, Any]] = found.get("producers", [])
    return listed


def is_registered(nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess, topic: str) -> bool:
    ports = [each["tcp_port"] for each in producers(nsqlookupd, topic)]
    return tcp_port(nsqd) in ports


def known_keys(nsqlookupd: NsqlookupdProcess, topic: str) -> set[str]:
    """The registrations of a topic, from /debug."""
    debug = nsqlookupd.http("GET", "/debug").json()
    return {key for key in debug if key.split(":")[1] == topic}


def channels_of(nsqd: NsqdProcess, topic: str) -> dict[str, int]:
    """Depths of a topic's channels by name."""
    return {each["channel_name"]: each["depth"] for each in nsqd.stats(topic)["channels"]}


class TestRegistration:
    def test_of_the_identity(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
        place = ("--topology-zone=z1", "--topology-region=r1")
        with run_node(nsqlookupd, flags=place) as nsqd:
            nsqd.post(f"/topic/create?topic={topic}")
            (shown,) = wait_until(lambda: producers(nsqlookupd, topic), "the topic")

            assert {
                "hostname": socket.gethostname(),
                "broadcast_address": "127.0.0.1",
                "tcp_port": tcp_port(nsqd),
                "http_port": int(nsqd.http_address.rpartition(":")[2]),
                "version": "1.3.0",
                "topology_zone": "z1",
                "topology_region": "r1",
            } == {key: value for key, value in shown.items() if key != "remote_address"}

    def test_of_broadcast_address_and_ports(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        """Also without an HTTP listener; nsqlookupd requires an HTTP port."""
        flags = ("--http-address=", "--broadcast-tcp-port=1234", "--broadcast-http-port=5678")
        with run_node(nsqlookupd, flags=flags) as nsqd:
            nsqd.publish(topic, b"x")
            (shown,) = wait_until(lambda: producers(nsqlookupd, topic), "the topic")

        assert (1234, 5678) == (shown["tcp_port"], shown["http_port"])

    def test_without_an_http_port_is_refused_and_nsqd_continues(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd, flags=("--http-address=",)) as nsqd:
            wait_until(lambda: "E_BAD_BODY IDENTIFY missing fields" in nsqd.log, "the refusal")
            assert "refuses us: set -broadcast-http-port, or -http-address with" in nsqd.log
            nsqd.publish(topic, b"x")

            assert b"x" == nsqd.consumer(topic, "c").message().body

    def test_of_created_and_deleted_topics_and_channels(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd) as nsqd:
            consumer = nsqd.consumer(topic, "c")
            ephemeral = nsqd.consumer(topic, "e#ephemeral")
            wait_until(
                lambda: (
                    {f"topic:{topic}:", f"channel:{topic}:c", f"channel:{topic}:e#ephemeral"}
                    == known_keys(nsqlookupd, topic)
                ),
                "all to be registered",
            )
            ephemeral.close()
            wait_until(
                lambda: {f"topic:{topic}:", f"channel:{topic}:c"} == known_keys(nsqlookupd, topic),
                "the ephemeral channel to go",
            )
            nsqd.post(f"/topic/delete?topic={topic}")
            wait_until(lambda: set() == known_keys(nsqlookupd, topic), "the topic to go")
            nsqd.post(f"/topic/create?topic={topic}")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic to come back")
            consumer.close()

    def test_is_repeated_with_a_restarted_nsqlookupd(self, topic: str) -> None:
        with run_nsqlookupd() as nsqlookupd, run_node(nsqlookupd) as nsqd:
            nsqd.publish(topic, b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic")
            nsqlookupd.kill()
            nsqd.publish(f"{topic}-more", b"x")
            nsqlookupd.restart()

            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic again")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, f"{topic}-more"), "the new one")

    def test_is_removed_when_nsqd_stops(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
        with run_node(nsqlookupd) as nsqd:
            nsqd.publish(topic, b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic")
        wait_until(lambda: [] == producers(nsqlookupd, topic), "the node to go")

    def test_of_many_topics_created_at_once(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        names = {f"{topic}-{number}#ephemeral" for number in range(2000)}
        with run_node(nsqlookupd) as nsqd, RawClient(nsqd.tcp_address) as producer:
            producer.send(*(commands.pub(name, b"x") for name in names))
            for _ in names:
                producer.response()

            wait_until(
                lambda: (
                    names <= set(nsqlookupd.http("GET", "/nodes").json()["producers"][-1]["topics"])
                ),
                "them all",
            )


def test_identify_has_the_order_of_nsq() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        address = f"--lookupd-tcp-address=127.0.0.1:{server.getsockname()[1]}"
        with run_nsqd(address, "--topology-zone=z", "--broadcast-tcp-port=1"):
            conversation, _ = server.accept()
            with conversation, conversation.makefile("rb") as heard:
                assert b"  V1IDENTIFY\n" == heard.readline()
                said = json.loads(heard.read(int.from_bytes(heard.read(4))))

    assert [
        "broadcast_address",
        "hostname",
        "http_port",
        "node_id",
        "tcp_port",
        "topology_region",
        "topology_zone",
        "version",
    ] == list(said)
    assert ("z", 1) == (said["topology_zone"], said["tcp_port"])


class TestAddresses:
    """PUT /config/nsqlookupd_tcp_addresses."""

    def put(self, nsqd: NsqdProcess, addresses: object) -> int:
        body = json.dumps(addresses).encode()
        return nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", body).status

    def test_can_be_changed_at_runtime(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
        with scripted_lookupd() as other, run_node(nsqlookupd) as nsqd:
            nsqd.publish(topic, b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic")

            assert 200 == self.put(nsqd, [other.address])
            other.hears(Register(topic))
            wait_until(lambda: not is_registered(nsqlookupd, nsqd, topic), "it to leave")
            assert 200 == self.put(nsqd, [other.address, nsqlookupd.tcp_address])
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "it to come back")
            assert 1 == len(other.connected_at)
            assert 200 == self.put(nsqd, [])
            wait_until(lambda: not is_registered(nsqlookupd, nsqd, topic), "it to leave again")

    @pytest.mark.parametrize(
        "addresses",
        ["x:1", None, {}, ["no port"], [":4160"], ["x:0"], ["x:65536"], ["x:y"], [1], [["x:1"]]],
        ids=str,
    )
    def test_invalid_addresses_are_refused(
        self, nsqd_alone: NsqdProcess, addresses: object
    ) -> None:
        assert 400 == self.put(nsqd_alone, addresses)
        assert b"[]" == nsqd_alone.http("GET", "/config/nsqlookupd_tcp_addresses").body


class TestFailures:
    @pytest.mark.parametrize("answer", [script.nothing, script.hang_up], ids=["silent", "closes"])
    def test_of_one_nsqlookupd_do_not_affect_others_or_clients(
        self, nsqlookupd: NsqlookupdProcess, topic: str, answer: script.Answer
    ) -> None:
        with scripted_lookupd(answer) as bad, run_node(bad, nsqlookupd) as nsqd:
            wait_until(lambda: bad.heard, "the bad one to be told")
            for number in range(20):
                nsqd.publish(f"{topic}-{number}", b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, f"{topic}-19"), "the good one")

    def test_do_not_delay_a_stop(self, topic: str) -> None:
        with (
            http_server({}) as silent,
            scripted_lookupd(script.nothing) as bad,
            scripted_lookupd(script.with_http_port(silent.server_port)) as hanging,
            run_node(bad, hanging, flags=("--http-client-request-timeout=10m",)) as nsqd,
        ):
            silent.is_silent = True
            nsqd.publish(topic, b"x")
            wait_until(lambda: silent.asked, "it to be asked for channels")
            nsqd.terminate()

    def test_invalid_names_and_a_missing_list_are_ignored(self, topic: str) -> None:
        with channels_on_http({"channels": ["not/valid", "good", "e#ephemeral"]}) as lookupds:
            http, first = lookupds
            with run_node(first) as nsqd:
                nsqd.publish(topic, b"x")
                wait_until(lambda: {"good": 1} == channels_of(nsqd, topic), "the channel")
                http.answer = {"channels": 5}
                nsqd.publish(f"{topic}-more", b"x")
                wait_until(lambda: "failed to query nsqlookupd" in nsqd.log, "the failure")

                assert {} == channels_of(nsqd, f"{topic}-more")

    def test_channels_beyond_the_limit_are_left_out(self, topic: str) -> None:
        with (
            channels_on_http({"channels": ["a", "b", "c"]}) as (_, lookupd),
            run_node(lookupd, flags=("--max-channels-per-topic=2",)) as nsqd,
        ):
            nsqd.publish(topic, b"x")
            wait_until(lambda: {"a": 1, "b": 1} == channels_of(nsqd, topic), "the channels")
            assert "failed to make channel" in nsqd.log


@contextmanager
def channels_on_http(answer: object) -> Iterator[tuple[AuthServer, ScriptedLookupd]]:
    """An nsqlookupd whose HTTP API gives this response."""
    with (
        http_server(answer) as http,
        scripted_lookupd(script.with_http_port(http.server_port)) as lookupd,
    ):
        yield http, lookupd


class TestChannelsOfOtherNodes:
    def test_are_created_before_the_first_message_is_delivered(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd) as one, run_node(nsqlookupd) as other:
            one.consumer(topic, "c")
            one.consumer(topic, "e#ephemeral")
            one.consumer(topic, "d")
            wait_until(lambda: 4 == len(known_keys(nsqlookupd, topic)), "the channels")
            other.publish(topic, b"first", b"second")

            wait_until(lambda: {"c": 2, "d": 2} == channels_of(other, topic), "the same there")

    def test_are_awaited_even_before_the_first_connection(self, topic: str) -> None:
        with http_server({"channels": ["c"]}) as http:
            well = script.with_http_port(http.server_port)
            patience: list[float] = []

            def slow(event: Event) -> bytes:
                if isinstance(event, IdentifyPeer):
                    wait_until(lambda: patience, "the topic to be made")
                return well(event)

            with scripted_lookupd(slow) as lookupd, run_node(lookupd) as nsqd:
                subscriber = nsqd.consumer(topic, "early", rdy=5)
                nsqd.publish(topic, b"x")
                held = nsqd.stats(topic)["depth"]
                patience.append(1)

                assert 1 == held
                assert b"x" == subscriber.message().body
                assert {"c": 1, "early": 0} == channels_of(nsqd, topic)

    def test_are_awaited_until_the_request_timeout(self, topic: str) -> None:
        flags = ("--http-client-request-timeout=700ms",)
        with (
            channels_on_http({}) as (http, lookupd),
            run_node(lookupd, flags=flags) as nsqd,
        ):
            http.is_silent = True
            wait_until(lambda: "connected" in nsqd.log, "the connection")
            subscriber = nsqd.consumer(topic, "c", rdy=5)
            begun_at = time.monotonic()
            nsqd.publish(topic, b"x")
            message = subscriber.message()
            took_seconds = time.monotonic() - begun_at
            nsqd.publish(topic, b"y")

            assert 0.5 < took_seconds
            assert (b"x", b"y") == (message.body, finish_and_next(subscriber, message.id))

    def test_of_one_nsqlookupd_are_created_while_another_responds_byte_by_byte(
        self, topic: str
    ) -> None:
        with (
            channels_on_http({"channels": ["c"]}) as (_, good),
            scripted_lookupd(script.drip) as slow,
            run_node(slow, good) as nsqd,
        ):
            subscriber = nsqd.consumer(topic, "early", rdy=5)
            nsqd.publish(topic, b"x")

            assert b"x" == subscriber.message(seconds=30).body
            assert {"c": 1, "early": 0} == channels_of(nsqd, topic)

    def test_requests_for_many_topics_are_limited(self, topic: str) -> None:
        """The timeout of a request includes the wait for its turn."""
        flags = ("--http-client-request-timeout=10s",)
        with (
            channels_on_http({}) as (http, lookupd),
            run_node(lookupd, flags=flags) as nsqd,
            RawClient(nsqd.tcp_address) as producer,
        ):
            http.is_silent = True
            wait_until(lambda: "connected" in nsqd.log, "the connection")
            producer.send(*(commands.pub(f"{topic}-{each}#ephemeral", b"x") for each in range(300)))
            for _ in range(300):
                producer.response()
            wait_until(lambda: len(http.asked) >= REQUESTS_MAX, "the questions")
            asked = len(http.asked)
            last = nsqd.consumer(f"{topic}-299#ephemeral", "c", rdy=5)

            assert REQUESTS_MAX == asked
            assert b"x" == last.message().body

    def test_are_not_created_for_a_deleted_topic(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        other = f"{topic}-more"
        for each in (topic, other):
            nsqlookupd.post(f"/channel/create?topic={each}&channel=c")
        with run_node(nsqlookupd) as nsqd:
            wait_until(lambda: "connected" in nsqd.log, "the connection")
            nsqlookupd.send_signal(signal.SIGSTOP)
            try:
                nsqd.publish(topic, b"x")
                nsqd.post(f"/topic/delete?topic={topic}")
                nsqd.publish(other, b"x")
            finally:
                nsqlookupd.send_signal(signal.SIGCONT)
            wait_until(lambda: {"c": 1} == channels_of(nsqd, other), "the other topic's channel")

            assert "failed to make channel" not in nsqd.log
            assert 404 == nsqd.http("POST", f"/topic/delete?topic={topic}").status

    @pytest.mark.parametrize("end", [NsqdProcess.kill, NsqdProcess.terminate])
    def test_a_stop_while_they_are_awaited_loses_nothing(self, topic: str, end: Any) -> None:
        with channels_on_http({}) as (http, lookupd), run_node(lookupd) as nsqd:
            http.is_silent = True
            subscriber = nsqd.consumer(topic, "c", rdy=5)
            nsqd.publish(topic, b"x")
            wait_until(lambda: http.asked, "the question")
            held = subscriber.is_silent(seconds=0.05)
            end(nsqd)
            nsqd.restart()

            assert held
            assert b"x" == nsqd.consumer(topic, "c", rdy=5).message().body


def finish_and_next(subscriber: RawClient, message_id: bytes) -> bytes:
    subscriber.send(commands.fin(message_id))
    return subscriber.message().body
