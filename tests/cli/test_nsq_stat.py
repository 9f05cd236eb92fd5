"""nsq_stat as a program: NSQ's rows in a pipe, a live view on a terminal."""

import signal
import socket
import subprocess
import sys

import pytest
from tests.cli.programs import in_pipe, on_terminal, started, wait_until_stuck

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until

HEADER = [
    "------rate------+----------------depth----------------+--------------metadata---------------",
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
]
NOWHERE = "127.0.0.1:1"


def watching(nsqd: NsqdProcess, topic: str, *flags: str) -> list[str]:
    return [f"-topic={topic}", "-channel=c", f"-nsqd-http-address={nsqd.http_address}", *flags]


def make_channel(nsqd: NsqdProcess, topic: str, *bodies: bytes) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.publish(topic, *bodies)


class TestInAPipe:
    def test_rows_are_those_of_nsq(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "rows", b"1", b"2", b"3")
        nsqd.consumer("rows", "c", rdy=1).message()
        done = in_pipe("nsq_stat", *watching(nsqd, "rows", "-interval=20ms", "-count=2"))
        row = (
            "      0       0 |       2       2       0     1     0"
            " |       0       0            3       1"
        )

        assert (0, [*HEADER, row, row]) == (done.returncode, done.stdout.splitlines())

    def test_a_write_error_is_reported_in_one_line(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "full")
        command = [sys.executable, "-m", "penstock.cli.nsq_stat", *watching(nsqd, "full")]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=120
            )

        assert (1, 1) == (done.returncode, done.stderr.count(b"\n")), done.stderr
        expected = b"FATAL: standard output cannot be written: No space left on device\n"
        assert done.stderr.endswith(expected)

    def test_the_header_comes_again_after_25_rows(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "headers")
        done = in_pipe("nsq_stat", *watching(nsqd, "headers", "-interval=1ms", "-count=26"))
        lines = done.stdout.splitlines()

        assert 26 + 2 * 2 == len(lines)
        assert HEADER == lines[27:29]

    def test_rates_are_of_the_time_between_two_rows(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "rates", b"before")
        flags = watching(nsqd, "rates", "-interval=3s", "-count=2")
        with started("nsq_stat", *flags) as program:
            assert program.stdout is not None
            program.stdout.readline()
            nsqd.post("/mpub?topic=rates", b"\n".join([b"x"] * 30))
            program.stdout.readline()
            first, second = (line.split() for line in program.stdout.read().splitlines())

        assert 0 < int(first[0]) <= 30 / 3
        assert ("0", "0", "31") == (first[1], second[0], second[3])

    def test_nodes_are_found_by_nsqlookupd(
        self, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
    ) -> None:
        make_channel(nsqd, "looked-up", b"one")
        wait_until(lambda: nsqlookupd.found("looked-up"), "the topic to be registered")
        address = f"-lookupd-http-address={nsqlookupd.http_address}"
        flags = ["-topic=looked-up", "-channel=c", "-count=1", "-interval=10ms", address]
        done = in_pipe("nsq_stat", *flags)

        assert (0, "1") == (done.returncode, done.stdout.splitlines()[2].split()[3])

    def test_nodes_are_summed_and_a_missing_one_is_reported(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "added", b"1")
        with run_nsqd() as other:
            make_channel(other, "added", b"2", b"3")
            more = [f"-nsqd-http-address={each}" for each in (other.http_address, NOWHERE)]
            flags = watching(nsqd, "added", "-count=1", "-interval=10ms", *more)
            done = in_pipe("nsq_stat", *flags)

        assert (0, "3") == (done.returncode, done.stdout.splitlines()[2].split()[3])
        assert f"WARNING: http://{NOWHERE}/stats: " in done.stderr

    def test_a_signal_ends_it_with_exit_code_0(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "signalled")
        for number in (signal.SIGINT, signal.SIGTERM):
            with started("nsq_stat", *watching(nsqd, "signalled", "-interval=1h")) as program:
                assert program.stdout is not None
                program.stdout.readline()
                program.send_signal(number)

                assert (0, "") == (program.wait(120), program.communicate()[1])

    def test_one_signal_ends_it_while_the_output_blocks(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "stuck")
        with started("nsq_stat", *watching(nsqd, "stuck", "-interval=1ms")) as program:
            wait_until_stuck(program)
            program.send_signal(signal.SIGTERM)

            assert 0 == program.wait(120)


class TestOnATerminal:
    def test_q_exits_the_live_view(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "live", b"1", b"2")
        with on_terminal("nsq_stat", *watching(nsqd, "live", "-interval=100ms")) as terminal:
            terminal.see("live / c   1 node")
            nsqd.post("/pub?topic=live", b"3")
            terminal.see("█")
            terminal.press("q")
            code, shown = terminal.end()

            assert 0 == code
            assert "in memory" in shown
            assert terminal.shows_what_is_typed

    def test_it_ends_after_count_and_prints_the_last_view(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "counted", b"1")
        flags = watching(nsqd, "counted", "-interval=10ms", "-count=2")
        with on_terminal("nsq_stat", *flags) as terminal:
            code, shown = terminal.end()

        assert 0 == code
        assert "counted / c   1 node" in shown

    def test_plain_prints_rows_on_a_terminal(self, nsqd: NsqdProcess) -> None:
        make_channel(nsqd, "plain", b"1")
        flags = watching(nsqd, "plain", "-interval=10ms", "-count=1", "-plain")
        with on_terminal("nsq_stat", *flags) as terminal:
            code, shown = terminal.end()

        assert (0, HEADER) == (code, shown.splitlines()[:2])


HERE = "-nsqd-http-address=127.0.0.1:4151"
NAMES = ("-topic=t", "-channel=c")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([HERE], "--topic and --channel are required"),
        (["-topic=t", HERE], "--topic and --channel are required"),
        ([*NAMES], "--nsqd-http-address or --lookupd-http-address required"),
        (
            [*NAMES, HERE, "-lookupd-http-address=127.0.0.1:4161"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            [*NAMES, "-nsqd-http-address=http://127.0.0.1:4151"],
            "--nsqd-http-address error - address should not contain scheme",
        ),
        ([*NAMES, HERE, "-count=0"], "--count must be 1 or more, not 0"),
        ([*NAMES, HERE, "-interval=0s"], "--interval must be 1ns or more, not 0s"),
        ([*NAMES, f"-nsqd-http-address={NOWHERE}"], f"http://{NOWHERE}/stats: "),
    ],
)
def test_errors_are_reported_in_one_line(flags: list[str], expected: str) -> None:
    done = in_pipe("nsq_stat", *flags)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"FATAL: {expected}" in done.stderr


def test_an_nsqd_that_never_responds_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"-nsqd-http-address=127.0.0.1:{silent.getsockname()[1]}"
        done = in_pipe("nsq_stat", *NAMES, address, "-http-client-request-timeout=100ms")

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert done.stderr.endswith("/stats: timed out\n")


def test_an_unknown_channel_is_an_error(nsqd: NsqdProcess) -> None:
    done = in_pipe("nsq_stat", *watching(nsqd, "nobody-has-it"))

    assert (1, "") == (done.returncode, done.stdout)
    assert "failed to find channel(c) in stats metadata for topic(nobody-has-it)" in done.stderr


def test_an_unknown_flag_exits_with_2() -> None:
    assert 2 == in_pipe("nsq_stat", "-nonsense").returncode
