"""penstock sub as a program: prints messages, then finishes them."""

import json
import signal
import subprocess
import sys

import pytest
from tests.cli.programs import in_pipe, on_terminal, started, unread_bytes

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until


def consuming(nsqd: NsqdProcess, topic: str, *flags: str) -> list[str]:
    return ["sub", topic, "c", "--nsqd-tcp-address", nsqd.tcp_address, *flags]


class TestInAPipe:
    def test_bodies_are_lines_and_are_finished(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("lines", b"one", b"two", b"three")
        done = in_pipe("penstock", *consuming(nsqd, "lines", "--count=2"))

        assert (0, "one\ntwo\n", "") == (done.returncode, done.stdout, done.stderr)
        wait_until(lambda: nsqd.shows("lines", "c", depth=1, in_flight_count=0), "two FINs")

    def test_json_has_all_fields(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("json", b"text", b"\xff\xfe")
        done = in_pipe("penstock", *consuming(nsqd, "json", "-n2", "--json"))
        first, second = map(json.loads, done.stdout.splitlines())

        assert ["id", "timestamp_ns", "attempts", "nsqd", "body"] == list(first)
        assert ("text", 1, nsqd.tcp_address) == (first["body"], first["attempts"], first["nsqd"])
        assert "//4=" == second["body_base64"]

    def test_messages_are_printed_as_they_arrive(self, nsqd: NsqdProcess) -> None:
        with started("penstock", *consuming(nsqd, "live")) as program:
            assert program.stdout is not None
            nsqd.publish("live", b"first")
            assert "first\n" == program.stdout.readline()
            nsqd.publish("live", b"second")
            assert "second\n" == program.stdout.readline()
            wait_until(lambda: nsqd.shows("live", "c", in_flight_count=0), "the FINs")
            program.send_signal(signal.SIGINT)

            assert (0, "") == (program.wait(120), program.communicate()[1])

    def test_it_waits_for_a_topic_that_does_not_exist_yet(
        self, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
    ) -> None:
        flags = ["--lookupd-http-address", nsqlookupd.http_address, "-n1"]
        with started("penstock", "sub", "to-come", "c", *flags) as program:
            nsqd.publish("to-come", b"here")

            assert ("here\n", "") == program.communicate(timeout=120)

    def test_consumer_options_are_accepted(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("told", b"one")
        flags = ["--consumer-opt=snappy", "--consumer-opt=client_id,me"]
        with started("penstock", *consuming(nsqd, "told", *flags)) as program:
            assert program.stdout is not None
            program.stdout.readline()
            (client,) = nsqd.stats("told", "c")["clients"]

        assert (True, "me") == (client["snappy"], client["client_id"])

    def test_a_timeout_exits_with_1(self, nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *consuming(nsqd, "silent", "--timeout=50ms"))

        assert (1, "penstock: no message within 0.05 s\n") == (done.returncode, done.stderr)

    def test_a_closed_pipe_ends_it(self, nsqd: NsqdProcess) -> None:
        with started("penstock", *consuming(nsqd, "cut")) as program:
            assert program.stdout is not None
            nsqd.publish("cut", b"seen")
            program.stdout.readline()
            program.stdout.close()
            nsqd.publish("cut", b"unseen")
            assert program.stderr is not None

            assert (1, "") == (program.wait(120), program.stderr.read())
        wait_until(lambda: nsqd.shows("cut", "c", depth=1), "the unprinted message to be requeued")

    def test_one_signal_ends_it_while_the_output_blocks(self, nsqd: NsqdProcess) -> None:
        nsqd.post("/mpub?topic=stuck", b"\n".join([b"x" * 1000] * 1000))
        with started("penstock", *consuming(nsqd, "stuck")) as program:
            pipe = program.stdout
            assert pipe is not None
            wait_until(lambda: unread_bytes(pipe) > 60_000, "the pipe to be full")
            program.send_signal(signal.SIGTERM)
            assert 0 == program.wait(120)
            shown = pipe.read().count("\n")

        wait_until(lambda: nsqd.shows("stuck", "c", in_flight_count=0), "the rest to come back")
        assert nsqd.stats("stuck", "c")["depth"] >= 1000 - shown

    @pytest.mark.parametrize(
        ("output", "expected"),
        [
            (">/dev/full", "penstock: standard output cannot be written: No space left on device"),
            (">&-", "penstock: standard output is closed"),
        ],
    )
    def test_a_write_error_is_reported(self, nsqd: NsqdProcess, output: str, expected: str) -> None:
        nsqd.publish("untold", b"one")
        command = [sys.executable, "-m", "penstock.cli.penstock", *consuming(nsqd, "untold")]
        done = subprocess.run(
            ["sh", "-c", f'"$@" {output}', "sh", *command],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )

        assert (1, f"{expected}\n") == (done.returncode, done.stderr)


def test_ctrl_c_exits_on_a_terminal(nsqd: NsqdProcess) -> None:
    nsqd.publish("typed", b"hello")
    with on_terminal("penstock", *consuming(nsqd, "typed")) as terminal:
        terminal.see("hello")
        terminal.press("\x03")

        assert 0 == terminal.end()[0]


@pytest.mark.parametrize(
    "args",
    [
        ["orders", "c", "--nsqd-tcp-address=127.0.0.1:1"],
        ["orders", "c", "--lookupd-http-address=127.0.0.1:1"],
    ],
)
def test_errors_are_reported_in_one_line(args: list[str]) -> None:
    done = in_pipe("penstock", "sub", *args)

    assert (1, 1) == (done.returncode, done.stderr.count("\n")), done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["orders"],
        ["orders", "c", "--count=0"],
        ["orders", "c?"],
        ["orders", "c", "--consumer-opt=nonsense"],
    ],
)
def test_a_wrong_command_line_exits_with_2(args: list[str]) -> None:
    assert 2 == in_pipe("penstock", "sub", *args).returncode
