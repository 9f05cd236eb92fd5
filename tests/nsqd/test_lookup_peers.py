"""nsqd and its nsqlookupds: who is told what, and who is asked for channels."""

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
    """An nsqd that registers with these."""
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
    """What nsqds have of a topic, as /debug has it."""
    debug = nsqlookupd.http("GET", "/debug").json()
    return {key for key in debug if key.split(":")[1] == topic}


def channels_of(nsqd: NsqdProcess, topic: str) -> dict[str, int]:
    """The depths of a topic's channels, by name."""
    return {each["channel_name"]: each["depth"] for each in nsqd.stats(topic)["channels"]}


class TestRegistering:
    def test_who_we_are(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
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

    def test_whom_others_are_to_see(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
        """Also without HTTP, which nsqlookupd insists on."""
        flags = ("--http-address=", "--broadcast-tcp-port=1234", "--broadcast-http-port=5678")
        with run_node(nsqlookupd, flags=flags) as nsqd:
            nsqd.publish(topic, b"x")
            (shown,) = wait_until(lambda: producers(nsqlookupd, topic), "the topic")

        assert (1234, 5678) == (shown["tcp_port"], shown["http_port"])

    def test_without_http_it_is_refused_and_serves_on(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd, flags=("--http-address=",)) as nsqd:
            wait_until(lambda: "E_BAD_BODY IDENTIFY missing fields" in nsqd.log, "the refusal")
            assert "refuses us: set -broadcast-http-port, or -http-address with" in nsqd.log
            nsqd.publish(topic, b"x")

            assert b"x" == nsqd.consumer(topic, "c").message().body

    def test_what_is_made_and_deleted(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
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

    def test_all_of_it_with_an_nsqlookupd_that_comes_back(self, topic: str) -> None:
        with run_nsqlookupd() as nsqlookupd, run_node(nsqlookupd) as nsqd:
            nsqd.publish(topic, b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic")
            nsqlookupd.kill()
            nsqd.publish(f"{topic}-more", b"x")
            nsqlookupd.restart()

            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic again")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, f"{topic}-more"), "the new one")

    def test_nothing_is_left_of_a_node_that_stops(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd) as nsqd:
            nsqd.publish(topic, b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, topic), "the topic")
        wait_until(lambda: [] == producers(nsqlookupd, topic), "the node to go")

    def test_many_topics_made_at_once(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
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


def test_nsqd_says_who_it_is_in_nsqs_order() -> None:
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
        "tcp_port",
        "topology_region",
        "topology_zone",
        "version",
    ] == list(said)
    assert ("z", 1) == (said["topology_zone"], said["tcp_port"])


class TestTheList:
    """PUT /config/nsqlookupd_tcp_addresses."""

    def put(self, nsqd: NsqdProcess, addresses: object) -> int:
        body = json.dumps(addresses).encode()
        return nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", body).status

    def test_can_be_changed_while_it_runs(self, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
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
    def test_is_refused_unless_it_is_one_of_addresses(
        self, nsqd_alone: NsqdProcess, addresses: object
    ) -> None:
        assert 400 == self.put(nsqd_alone, addresses)
        assert b"[]" == nsqd_alone.http("GET", "/config/nsqlookupd_tcp_addresses").body


class TestTrouble:
    @pytest.mark.parametrize("answer", [script.nothing, script.hang_up], ids=["silent", "closes"])
    def test_with_one_costs_the_others_and_the_clients_nothing(
        self, nsqlookupd: NsqlookupdProcess, topic: str, answer: script.Answer
    ) -> None:
        with scripted_lookupd(answer) as bad, run_node(bad, nsqlookupd) as nsqd:
            wait_until(lambda: bad.heard, "the bad one to be told")
            for number in range(20):
                nsqd.publish(f"{topic}-{number}", b"x")
            wait_until(lambda: is_registered(nsqlookupd, nsqd, f"{topic}-19"), "the good one")

    def test_does_not_hold_up_a_stop(self, topic: str) -> None:
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

    def test_names_that_are_none_and_a_missing_list_are_overlooked(self, topic: str) -> None:
        with channels_on_http({"channels": ["not/valid", "good", "e#ephemeral"]}) as lookupds:
            http, first = lookupds
            with run_node(first) as nsqd:
                nsqd.publish(topic, b"x")
                wait_until(lambda: {"good": 1} == channels_of(nsqd, topic), "the channel")
                http.answer = {"channels": 5}
                nsqd.publish(f"{topic}-more", b"x")
                wait_until(lambda: "failed to query nsqlookupd" in nsqd.log, "the failure")

                assert {} == channels_of(nsqd, f"{topic}-more")

    def test_more_channels_than_there_may_be_leave_some_out(self, topic: str) -> None:
        with (
            channels_on_http({"channels": ["a", "b", "c"]}) as (_, lookupd),
            run_node(lookupd, flags=("--max-channels-per-topic=2",)) as nsqd,
        ):
            nsqd.publish(topic, b"x")
            wait_until(lambda: {"a": 1, "b": 1} == channels_of(nsqd, topic), "the channels")
            assert "failed to make channel" in nsqd.log


@contextmanager
def channels_on_http(answer: object) -> Iterator[tuple[AuthServer, ScriptedLookupd]]:
    """An nsqlookupd whose HTTP API answers so."""
    with (
        http_server(answer) as http,
        scripted_lookupd(script.with_http_port(http.server_port)) as lookupd,
    ):
        yield http, lookupd


class TestChannelsOfOthers:
    def test_are_made_before_the_first_message_is_handed_out(
        self, nsqlookupd: NsqlookupdProcess, topic: str
    ) -> None:
        with run_node(nsqlookupd) as one, run_node(nsqlookupd) as other:
            one.consumer(topic, "c")
            one.consumer(topic, "e#ephemeral")
            one.consumer(topic, "d")
            wait_until(lambda: 4 == len(known_keys(nsqlookupd, topic)), "the channels")
            other.publish(topic, b"first", b"second")

            wait_until(lambda: {"c": 2, "d": 2} == channels_of(other, topic), "the same there")

    def test_are_waited_for_even_before_the_first_connection(self, topic: str) -> None:
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

    def test_are_not_waited_for_longer_than_a_request_may_take(self, topic: str) -> None:
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

    def test_of_one_nsqlookupd_are_made_while_another_sends_its_answer_byte_by_byte(
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

    def test_of_many_topics_are_asked_for_a_few_at_a_time(self, topic: str) -> None:
        """And whose turn does not come waits no longer than those who have it."""
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

    def test_are_not_made_of_a_topic_that_was_deleted_meanwhile(
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
    def test_an_end_while_they_are_waited_for_loses_nothing(self, topic: str, end: Any) -> None:
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
