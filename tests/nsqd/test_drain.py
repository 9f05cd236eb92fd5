"""Draining: publishes are refused, messages are delivered, then nsqd stops."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.waiting import wait_until

TOPIC = "t"


@contextmanager
def draining(*flags: str) -> Iterator[NsqdProcess]:
    """A draining nsqd with one message in its queue."""
    with run_nsqd(*flags) as nsqd:
        nsqd.http("POST", f"/channel/create?topic={TOPIC}&channel=c")
        nsqd.publish(TOPIC, b"left")
        nsqd.post("/drain")
        yield nsqd
        if nsqd.is_running:
            finish(nsqd.consumer(TOPIC, "c"))
            assert 0 == nsqd.wait()


def finish(consumer: RawClient, count: int = 1) -> list[bytes]:
    """Consumes and finishes messages; returns their bodies."""
    bodies = []
    for _ in range(count):
        message = consumer.message()
        consumer.send(commands.fin(message.id))
        bodies.append(message.body)
    return bodies


@pytest.mark.parametrize(
    ("command", "code", "detail"),
    [
        (commands.pub(TOPIC, b"x"), "E_PUB_FAILED", "PUB failed draining"),
        (commands.pub("new", b"x"), "E_PUB_FAILED", "PUB failed draining"),
        (commands.mpub(TOPIC, [b"x", b"y"]), "E_MPUB_FAILED", "MPUB failed draining"),
        (commands.dpub(TOPIC, 100, b"x"), "E_DPUB_FAILED", "DPUB failed draining"),
    ],
    ids=["PUB", "PUB to a new topic", "MPUB", "DPUB"],
)
def test_publishes_are_refused(
    nsqd_draining: NsqdProcess, command: bytes, code: str, detail: str
) -> None:
    with pytest.raises(WireError) as refused:
        nsqd_draining.connect().call(command)

    assert (code, detail) == (refused.value.code, refused.value.detail)
    assert 1 == nsqd_draining.stats(TOPIC)["message_count"]


@pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=new", "/mpub?topic=t"])
def test_publishes_over_http_are_refused(nsqd_draining: NsqdProcess, target: str) -> None:
    answer = nsqd_draining.http("POST", target, b"x")

    assert (503, b'{"message":"DRAINING"}') == answer
    assert 1 == nsqd_draining.stats(TOPIC)["message_count"]


def test_draining_is_shown(nsqd_draining: NsqdProcess) -> None:
    assert nsqd_draining.http("GET", "/info").json()["draining"] is True
    assert nsqd_draining.http("GET", "/stats?format=json").json()["draining"] is True
    assert b"draining" in nsqd_draining.http("GET", "/stats").body.lower()
    assert b"OK" == nsqd_draining.http("GET", "/ping").body


def test_draining_is_not_shown_otherwise() -> None:
    with run_nsqd() as nsqd:
        shown = [nsqd.http("GET", each).body for each in ("/info", "/stats?format=json", "/stats")]

    assert [False] * 3 == [b"drain" in each.lower() for each in shown]


@pytest.fixture(scope="module")
def nsqd_draining() -> Iterator[NsqdProcess]:
    with draining("--drain-timeout=0") as nsqd:
        yield nsqd


class TestStop:
    def test_comes_at_once_without_messages(self) -> None:
        with run_nsqd() as nsqd:
            nsqd.post("/topic/create?topic=t")
            nsqd.post("/drain")

            assert 0 == nsqd.wait()
            assert "NSQ: drained" in nsqd.log

    def test_comes_when_consumers_have_finished_all_messages(self) -> None:
        bodies = [b"%d" % number for number in range(100)]
        with run_nsqd("--drain-timeout=0") as nsqd:
            early = nsqd.consumer(TOPIC, "early")
            nsqd.post(f"/channel/create?topic={TOPIC}&channel=late")
            nsqd.publish(TOPIC, *bodies)
            nsqd.post("/drain")
            taken_early = finish(early, 100)
            late = nsqd.consumer(TOPIC, "late")
            taken_late = finish(late, 99)
            last = late.message()
            running = nsqd.is_running, late.is_silent(seconds=0.3)
            late.send(commands.fin(last.id))

            assert bodies == taken_early
            assert bodies == [*taken_late, last.body]
            assert (True, True) == running
            assert 0 == nsqd.wait()

    def test_waits_for_requeued_and_deferred_messages(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            consumer = nsqd.consumer(TOPIC, "c", rdy=5)
            consumer.call(commands.dpub(TOPIC, 300, b"deferred"))
            consumer.call(commands.pub(TOPIC, b"requeued"))
            first = consumer.message()
            nsqd.post("/drain")
            consumer.send(commands.req(first.id, 600))

            assert [b"deferred", b"requeued"] == finish(consumer, 2)
            assert 0 == nsqd.wait()

    def test_waits_for_messages_of_a_topic_without_channels(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            nsqd.publish(TOPIC, b"x")
            nsqd.post("/drain")

            assert [b"x"] == finish(nsqd.consumer(TOPIC, "c"))
            assert 0 == nsqd.wait()

    def test_does_not_wait_for_emptied_or_deleted_messages(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            nsqd.publish("t", b"x")
            nsqd.publish("u", b"x")
            nsqd.post("/drain")
            nsqd.post("/topic/delete?topic=t")
            nsqd.post("/topic/empty?topic=u")

            assert 0 == nsqd.wait()

    def test_comes_after_the_timeout_and_remaining_messages_are_kept(self) -> None:
        with run_nsqd("--drain-timeout=3s") as nsqd:
            consumer = nsqd.consumer(TOPIC, "c", rdy=1)
            nsqd.publish(TOPIC, b"finished", b"in flight", b"queued")
            finish(consumer, 1)
            begun_at = time.monotonic()
            nsqd.post("/drain")
            nsqd.post("/drain")  # does not extend the timeout
            exit_code = nsqd.wait()
            took_seconds = time.monotonic() - begun_at
            log = nsqd.log
            nsqd.start()

            assert 0 == exit_code
            assert 3.0 <= took_seconds
            assert "not drained in time, 2 messages are left" in log
            assert 1 == log.count("NSQ: draining for up to 3 s")
            assert [b"in flight", b"queued"] == sorted(finish(nsqd.consumer(TOPIC, "c"), 2))
            nsqd.publish(TOPIC, b"taken again")


class TestSigterm:
    def test_drains_with_the_option(self) -> None:
        with run_nsqd("--sigterm=drain", "--drain-timeout=0") as nsqd:
            consumer = nsqd.consumer(TOPIC, "c")
            nsqd.publish(TOPIC, b"x")
            nsqd.send_signal(signal.SIGTERM)
            wait_until(lambda: "NSQ: draining" in nsqd.log, "it to drain")
            with pytest.raises(WireError):
                nsqd.publish(TOPIC, b"y")

            assert [b"x"] == finish(consumer)
            assert 0 == nsqd.wait()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_second_one_stops(self, number: signal.Signals) -> None:
        with run_nsqd("--sigterm=drain", "--drain-timeout=0") as nsqd:
            nsqd.publish(TOPIC, b"x")
            nsqd.send_signal(signal.SIGTERM)
            wait_until(lambda: "NSQ: draining" in nsqd.log, "it to drain")
            nsqd.send_signal(number)
            exit_code = nsqd.wait()
            nsqd.start()

            assert 0 == exit_code
            assert [b"x"] == finish(nsqd.consumer(TOPIC, "c"))

    @pytest.mark.parametrize(
        ("flag", "number"), [("stop", signal.SIGTERM), ("drain", signal.SIGINT)]
    )
    def test_stops_at_once_without_the_option(self, flag: str, number: signal.Signals) -> None:
        with run_nsqd(f"--sigterm={flag}") as nsqd:
            nsqd.publish(TOPIC, b"x")
            nsqd.send_signal(number)

            assert 0 == nsqd.wait()
            assert "draining" not in nsqd.log

    def test_stops_a_drain_started_over_http(self) -> None:
        with draining() as nsqd:
            nsqd.send_signal(signal.SIGTERM)

            assert 0 == nsqd.wait()


def test_nsqlookupd_hides_the_node_from_producers_only() -> None:
    """Also an nsqlookupd that has restarted, and a new one."""
    with (
        run_nsqlookupd() as known,
        run_nsqlookupd() as new,
        draining(f"--lookupd-tcp-address={known.tcp_address}", "--drain-timeout=0") as nsqd,
    ):
        wait_until(lambda: [True] == marks(known), "the mark")
        assert [] == marks(known, "&for=producer")

        known.restart()
        addresses = json.dumps([known.tcp_address, new.tcp_address]).encode()
        assert 200 == nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", addresses).status

        for nsqlookupd in (known, new):
            shown = wait_until(partial(marks, nsqlookupd), "the node to register")
            assert [True] == shown
            assert [] == marks(nsqlookupd, "&for=producer")


def marks(nsqlookupd: NsqlookupdProcess, query: str = "") -> list[bool]:
    """For each node of a lookup, whether it is marked as draining."""
    answer = nsqlookupd.http("GET", f"/lookup?topic={TOPIC}{query}").json()
    return [each.get("draining", False) for each in answer.get("producers", [])]
