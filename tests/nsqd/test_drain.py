"""Draining: nothing more comes in, what is there goes out, and then nsqd ends."""

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
    """An nsqd that drains, with one message that nobody has taken yet."""
    with run_nsqd(*flags) as nsqd:
        nsqd.http("POST", f"/channel/create?topic={TOPIC}&channel=c")
        nsqd.publish(TOPIC, b"left")
        nsqd.post("/drain")
        yield nsqd
        if nsqd.is_running:
            finish(nsqd.consumer(TOPIC, "c"))
            assert 0 == nsqd.wait()


def finish(consumer: RawClient, count: int = 1) -> list[bytes]:
    """Takes messages and finishes them; returns their bodies."""
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


def test_it_says_so(nsqd_draining: NsqdProcess) -> None:
    assert nsqd_draining.http("GET", "/info").json()["draining"] is True
    assert nsqd_draining.http("GET", "/stats?format=json").json()["draining"] is True
    assert b"draining" in nsqd_draining.http("GET", "/stats").body.lower()
    assert b"OK" == nsqd_draining.http("GET", "/ping").body


def test_a_node_that_does_not_drain_says_nothing_of_it() -> None:
    with run_nsqd() as nsqd:
        shown = [nsqd.http("GET", each).body for each in ("/info", "/stats?format=json", "/stats")]

    assert [False] * 3 == [b"drain" in each.lower() for each in shown]


@pytest.fixture(scope="module")
def nsqd_draining() -> Iterator[NsqdProcess]:
    with draining("--drain-timeout=0") as nsqd:
        yield nsqd


class TestTheEnd:
    def test_comes_at_once_when_there_is_nothing(self) -> None:
        with run_nsqd() as nsqd:
            nsqd.post("/topic/create?topic=t")
            nsqd.post("/drain")

            assert 0 == nsqd.wait()
            assert "NSQ: drained" in nsqd.log

    def test_comes_when_consumers_have_taken_everything(self) -> None:
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

    def test_waits_for_what_is_requeued_and_deferred(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            consumer = nsqd.consumer(TOPIC, "c", rdy=5)
            consumer.call(commands.dpub(TOPIC, 300, b"deferred"))
            consumer.call(commands.pub(TOPIC, b"requeued"))
            first = consumer.message()
            nsqd.post("/drain")
            consumer.send(commands.req(first.id, 600))

            assert [b"deferred", b"requeued"] == finish(consumer, 2)
            assert 0 == nsqd.wait()

    def test_waits_for_messages_that_no_channel_has_had(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            nsqd.publish(TOPIC, b"x")
            nsqd.post("/drain")

            assert [b"x"] == finish(nsqd.consumer(TOPIC, "c"))
            assert 0 == nsqd.wait()

    def test_does_not_wait_for_what_is_emptied_or_deleted(self) -> None:
        with run_nsqd("--drain-timeout=0") as nsqd:
            nsqd.publish("t", b"x")
            nsqd.publish("u", b"x")
            nsqd.post("/drain")
            nsqd.post("/topic/delete?topic=t")
            nsqd.post("/topic/empty?topic=u")

            assert 0 == nsqd.wait()

    def test_comes_when_time_is_up_and_what_is_left_comes_back(self) -> None:
        with run_nsqd("--drain-timeout=3s") as nsqd:
            consumer = nsqd.consumer(TOPIC, "c", rdy=1)
            nsqd.publish(TOPIC, b"finished", b"in flight", b"queued")
            finish(consumer, 1)
            begun_at = time.monotonic()
            nsqd.post("/drain")
            nsqd.post("/drain")  # this does not give it more time
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
    def test_drains_if_it_is_told_so(self) -> None:
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
    def test_stops_when_it_comes_again(self, number: signal.Signals) -> None:
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
    def test_stops_at_once_otherwise(self, flag: str, number: signal.Signals) -> None:
        with run_nsqd(f"--sigterm={flag}") as nsqd:
            nsqd.publish(TOPIC, b"x")
            nsqd.send_signal(number)

            assert 0 == nsqd.wait()
            assert "draining" not in nsqd.log

    def test_stops_a_drain_that_was_asked_for_over_http(self) -> None:
        with draining() as nsqd:
            nsqd.send_signal(signal.SIGTERM)

            assert 0 == nsqd.wait()


def test_producers_are_kept_away_and_consumers_are_not() -> None:
    """Also by an nsqlookupd that comes back meanwhile, and by one that is new."""
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
    """Of each node that is found, whether it is said to drain."""
    answer = nsqlookupd.http("GET", f"/lookup?topic={TOPIC}{query}").json()
    return [each.get("draining", False) for each in answer.get("producers", [])]
