"""penstock drain as a program: starts the drain and waits for the node to stop."""

import signal

import pytest
import uvloop
from tests.cli.programs import in_pipe, on_terminal, started

from penstock.admin_api.cluster import Cluster
from penstock.cli.drain import wait_until_drained
from penstock.common.errors import ClientError
from penstock.net.http_client.client import HttpClient
from penstock.protocol import commands
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until


def test_an_empty_node_stops_at_once() -> None:
    with run_nsqd() as nsqd:
        done = in_pipe("penstock", "drain", nsqd.http_address)

        assert (0, f"{nsqd.http_address} has stopped\n") == (done.returncode, done.stderr)
        assert 0 == nsqd.wait()


def test_it_waits_until_consumers_have_finished_everything() -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("orders", b"one")
        consumer = nsqd.consumer("orders", "c")
        message = consumer.message()
        with started("penstock", "drain", nsqd.http_address) as program:
            wait_until(lambda: "draining" in nsqd.http("GET", "/info").json(), "it to begin")
            assert program.poll() is None
            consumer.send(commands.fin(message.id))

            assert 0 == program.wait(120)
        assert 0 == nsqd.wait()


def test_remaining_messages_are_shown_at_the_timeout() -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("orders", b"one", b"two")
        flags = ["--timeout=5s"]
        with on_terminal("penstock", "drain", nsqd.http_address, *flags) as terminal:
            terminal.see("is draining, 2 messages left")
            code, shown = terminal.end()

        assert 1 == code
        assert (
            f"{nsqd.http_address} has not stopped within 5 s: it is draining, 2 messages" in shown
        )


def test_no_wait_returns_at_once() -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("orders", b"one")
        done = in_pipe("penstock", "drain", nsqd.http_address, "--no-wait")

        assert (0, f"{nsqd.http_address} is draining\n") == (done.returncode, done.stderr)
        assert nsqd.http("GET", "/info").json()["draining"]


def test_an_unreachable_node_is_reported_in_one_line() -> None:
    done = in_pipe("penstock", "drain", "127.0.0.1:1")

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))


def test_a_node_that_does_not_respond_has_not_stopped() -> None:
    hasty = HttpClient(connect_timeout_seconds=0.2, request_timeout_seconds=0.2)
    with run_nsqd() as nsqd:
        node = nsqd.http_address
        nsqd.publish("orders", b"one")
        nsqd.post("/drain")
        nsqd.send_signal(signal.SIGSTOP)
        try:
            waiting = wait_until_drained(
                Cluster(hasty, nsqds=[node]), node, lambda _: None, timeout_seconds=0.3
            )
            with pytest.raises(
                ClientError, match=r"has not stopped within 0\.3 s: it does not respond"
            ):
                uvloop.run(waiting)
        finally:
            nsqd.send_signal(signal.SIGCONT)
