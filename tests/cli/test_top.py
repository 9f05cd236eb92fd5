"""penstock top as a program: a live view on a terminal, tables in a pipe."""

import signal
from pathlib import Path

import pytest
from tests.cli.programs import TerminalProgram, in_pipe, on_terminal, started, wait_until_stuck

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def busy_nsqd(nsqd: NsqdProcess) -> NsqdProcess:
    """An nsqd with two topics; the second has the deeper channels."""
    for topic, channel in (("apples", "eat"), ("pears", "eat"), ("pears", "juice")):
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    nsqd.publish("apples", b"1")
    nsqd.publish("pears", b"1", b"2", b"3")
    nsqd.post("/channel/empty?topic=pears&channel=eat")
    nsqd.post("/channel/pause?topic=pears&channel=eat")
    return nsqd


def looking_at(nsqd: NsqdProcess, *flags: str) -> list[str]:
    return ["top", "--nsqd-http-address", nsqd.http_address, "--interval", "50ms", *flags]


def is_sorted_by_name(terminal: TerminalProgram) -> bool:
    """Whether the next view is sorted; earlier views may precede it."""
    shown, _, _ = terminal.see("q quit").rpartition("q quit")
    latest = shown.split("penstock top")[-1]
    return latest.index("apples") < latest.index("pears")


class TestInAPipe:
    def test_a_table_of_everything_is_printed_once(self, busy_nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *looking_at(busy_nsqd, "--once"))
        table = """\
TOPIC   CHANNEL  DEPTH  IN-FLIGHT  DEFERRED  CLIENTS  IN/S  OUT/S
apples  -            0          -         -        -   0.0      -
apples  eat          1          0         0        0   0.0    0.0
pears   -            0          -         -        -   0.0      -
pears   eat          0          0         0        0   0.0    0.0
pears   juice        3          0         0        0   0.0    0.0
"""
        assert (0, table, "") == (done.returncode, done.stdout, done.stderr)

    def test_sort_orders_by_the_largest_number(self, busy_nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *looking_at(busy_nsqd, "--once", "--sort=depth"))
        rows = [line.split()[:3] for line in done.stdout.splitlines()[1:]]

        assert [
            ["pears", "-", "0"],
            ["pears", "juice", "3"],
            ["pears", "eat", "0"],
            ["apples", "-", "0"],
            ["apples", "eat", "1"],
        ] == rows

    def test_tables_follow_each_other(self, busy_nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *looking_at(busy_nsqd, "--count=3"))

        assert (0, 3, 2) == (
            done.returncode,
            done.stdout.count("TOPIC"),
            done.stdout.count("\n\nTOPIC"),
        )

    def test_nodes_are_found_by_nsqlookupd(
        self, busy_nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
    ) -> None:
        wait_until(lambda: nsqlookupd.found("pears"), "the topic to be registered")
        addresses = [nsqlookupd.http_address, NOWHERE]
        flags = [f"--lookupd-http-address={address}" for address in addresses]
        done = in_pipe("penstock", "top", "--once", "--interval=10ms", *flags)

        assert (0, 6) == (done.returncode, len(done.stdout.splitlines()))
        assert done.stderr.startswith(f"penstock: http://{NOWHERE}/nodes: ")

    def test_an_unreachable_node_is_reported_beside_the_others(
        self, busy_nsqd: NsqdProcess
    ) -> None:
        flags = looking_at(busy_nsqd, "--once", "--nsqd-http-address", NOWHERE)
        done = in_pipe("penstock", *flags)

        assert (0, 6) == (done.returncode, len(done.stdout.splitlines()))
        assert done.stderr.startswith(f"penstock: http://{NOWHERE}/stats: ")

    @pytest.mark.parametrize("flag", ["--nsqd-http-address", "--lookupd-http-address"])
    def test_no_reachable_node_is_reported_in_one_line(self, flag: str) -> None:
        done = in_pipe("penstock", "top", flag, NOWHERE)

        assert (1, 1) == (done.returncode, done.stderr.count("\n"))

    def test_a_missing_or_insufficient_token_is_explained(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens"
        tokens.write_text("publish secret\n")
        tokens.chmod(0o600)
        with run_nsqd(f"--http-auth-token-file={tokens}") as nsqd:
            without = in_pipe("penstock", *looking_at(nsqd, "--once"))
            other = in_pipe("penstock", *looking_at(nsqd, "--once", "--token=secret"))

        url = f"http://{nsqd.http_address}/stats"
        assert f"penstock: {url}: a token is needed\n" == without.stderr
        assert f"penstock: {url}: the token does not allow that\n" == other.stderr

    def test_a_signal_ends_it_with_exit_code_0(self, busy_nsqd: NsqdProcess) -> None:
        with started("penstock", *looking_at(busy_nsqd)) as program:
            assert program.stdout is not None
            program.stdout.readline()
            program.send_signal(signal.SIGTERM)

            assert 0 == program.wait(120)

    def test_one_signal_ends_it_while_the_output_blocks(self, busy_nsqd: NsqdProcess) -> None:
        with started("penstock", *looking_at(busy_nsqd, "--interval=1ms")) as program:
            wait_until_stuck(program)
            program.send_signal(signal.SIGTERM)

            assert 0 == program.wait(120)


class TestOnATerminal:
    def test_keys_change_the_order_and_q_exits(self, busy_nsqd: NsqdProcess) -> None:
        with on_terminal("penstock", *looking_at(busy_nsqd)) as terminal:
            shown = terminal.see("q quit")
            assert "1 node · 2 topics · 3 channels" in shown
            assert "eat paused" in shown
            assert shown.index("apples") < shown.index("pears")
            terminal.press("\x1b[D")
            terminal.see("q quit")
            assert is_sorted_by_name(terminal)
            terminal.press("d")
            wait_until(lambda: not is_sorted_by_name(terminal), "the deepest to come first")
            terminal.press("N")
            wait_until(lambda: is_sorted_by_name(terminal), "names to be in order again")
            terminal.press("q")

            assert 0 == terminal.end()[0]
            assert terminal.shows_what_is_typed

    def test_ctrl_c_exits(self, busy_nsqd: NsqdProcess) -> None:
        with on_terminal("penstock", *looking_at(busy_nsqd)) as terminal:
            terminal.see("q quit")
            terminal.press("\x03")

            assert 0 == terminal.end()[0]
            assert terminal.shows_what_is_typed

    def test_an_early_signal_restores_the_terminal(self, busy_nsqd: NsqdProcess) -> None:
        prelude = """
import os, signal, tty
setcbreak = tty.setcbreak
tty.setcbreak = lambda fd: (setcbreak(fd), os.kill(os.getpid(), signal.SIGTERM))
"""
        with on_terminal("penstock", *looking_at(busy_nsqd), prelude=prelude) as terminal:
            assert 0 == terminal.end()[0]
            assert terminal.shows_what_is_typed

    def test_the_view_fits_a_smaller_terminal(self, busy_nsqd: NsqdProcess) -> None:
        with on_terminal("penstock", *looking_at(busy_nsqd, "--interval=1h")) as terminal:
            assert "more" not in terminal.see("q quit")
            terminal.resize(60, 8)
            terminal.see("and 3 more")
            terminal.press("q")

            assert 0 == terminal.end()[0]

    def test_a_dumb_terminal_gets_plain_lines(self, busy_nsqd: NsqdProcess) -> None:
        flags = looking_at(busy_nsqd, "--count=1")
        with on_terminal("penstock", *flags, kind="dumb") as terminal:
            code, shown = terminal.end()

        assert (0, "TOPIC") == (code, shown.split()[0])

    def test_nodes_come_and_go(self, busy_nsqd: NsqdProcess) -> None:
        with run_nsqd("--http-address=127.0.0.1:0") as other:
            other.publish("plums", b"1")
            address = other.http_address
            flags = looking_at(busy_nsqd, "--nsqd-http-address", address)
            with on_terminal("penstock", *flags) as terminal:
                terminal.see("2 nodes · 3 topics")
                other.terminate()
                shown = terminal.see("1 node · 2 topics")
                terminal.see(f"http://{address}/stats: ")
                assert "plums" not in shown[shown.rindex("1 node · 2 topics") :]
                terminal.press("q")

                assert 0 == terminal.end()[0]

    def test_the_view_stays_while_no_node_responds(self) -> None:
        with run_nsqd() as nsqd, on_terminal("penstock", *looking_at(nsqd)) as terminal:
            terminal.see("1 node")
            nsqd.terminate()
            terminal.see("0 nodes")
            terminal.press("q")

            assert 0 == terminal.end()[0]
