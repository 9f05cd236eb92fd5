"""penstock history as a program: stored messages, by number and by time."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe, on_terminal, started
from tests.net.tls.certificates import Authority

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until


def reading(nsqd: NsqdProcess, topic: str, *flags: str) -> list[str]:
    return ["history", topic, "--nsqd-http-address", nsqd.http_address, *flags]


def seqs(nsqd: NsqdProcess, topic: str) -> list[int]:
    lines = nsqd.http("GET", f"/topic/messages?topic={topic}").body.splitlines()
    return [json.loads(line)["seq"] for line in lines]


class TestInAPipe:
    def test_a_line_has_position_time_and_body(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("lines", b"one", b"t\two\nlines", b"\xff")
        done = in_pipe("penstock", *reading(nsqd, "lines"))
        first, second, third = done.stdout.splitlines()

        assert 0 == done.returncode
        assert re.fullmatch(
            r"[0-9a-f]{8}:\d{16}  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  one", first
        )
        assert second.endswith("  t\two\\nlines")
        assert third.endswith("  \\xff")

    def test_a_range_of_numbers(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("range", b"0", b"1", b"2", b"3")
        _, first, _, end = seqs(nsqd, "range")
        flags = ["--from", str(first), "--to", str(end), "--body"]

        assert "1\n2\n" == in_pipe("penstock", *reading(nsqd, "range", *flags)).stdout

    def test_a_range_of_printed_positions(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("positions", b"0", b"1", b"2", b"3")
        lines = in_pipe("penstock", *reading(nsqd, "positions")).stdout.splitlines()
        _, first, _, end = (line.split()[0] for line in lines)
        flags = ["--from", first, "--to", end, "--body"]

        assert "1\n2\n" == in_pipe("penstock", *reading(nsqd, "positions", *flags)).stdout

    def test_a_position_of_a_deleted_topic_is_refused(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("again", b"0")
        position = in_pipe("penstock", *reading(nsqd, "again")).stdout.split()[0]
        nsqd.post("/topic/delete?topic=again")
        nsqd.publish("again", b"1")
        done = in_pipe("penstock", *reading(nsqd, "again", "--from", position))

        assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
        assert "the log of again is another one: its id is " in done.stderr

    def test_the_latest_by_time(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("times", b"old")
        between_ns = time.time_ns()
        nsqd.publish("times", b"new")
        for start, expected in ((str(between_ns), "new\n"), ("1h", "old\nnew\n")):
            flags = ["--body", "--from", start]

            assert expected == in_pipe("penstock", *reading(nsqd, "times", *flags)).stdout

    def test_json_is_that_of_nsqd(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("json", b"one", b"two")
        done = in_pipe("penstock", *reading(nsqd, "json", "--json", "--limit=1"))

        assert ["seq", "id", "timestamp_ns", "body"] == list(json.loads(done.stdout))

    def test_follow_prints_new_messages(self, nsqd: NsqdProcess) -> None:
        nsqd.publish("followed", b"old")
        flags = ["--follow", "--from=earliest", "--body"]
        with started("penstock", *reading(nsqd, "followed", *flags)) as program:
            assert program.stdout is not None
            assert "old\n" == program.stdout.readline()
            nsqd.publish("followed", b"new")
            assert "new\n" == program.stdout.readline()
            program.send_signal(signal.SIGINT)

            assert (0, "") == (program.wait(120), program.communicate()[1])

    def test_a_node_that_stops_during_follow_is_reported(self) -> None:
        with run_nsqd() as nsqd:
            nsqd.publish("cut", b"one")
            (seq,) = seqs(nsqd, "cut")
            log_id = nsqd.http("GET", "/topic/log?topic=cut").json()["log_id"]
            flags = ["--follow", "--from=earliest"]
            with started("penstock", *reading(nsqd, "cut", *flags)) as program:
                assert program.stdout is not None
                program.stdout.readline()
                nsqd.kill()
                code, (_, told) = program.wait(120), program.communicate()
            nsqd.start()

        assert (1, 1) == (code, told.count("\n"))
        assert f"; continue with --from {log_id[:8]}:{seq + 1}" in told

    def test_several_nodes_are_merged_by_time(
        self, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
    ) -> None:
        flags = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
        with run_nsqd(*flags) as other:
            for node, body in ((nsqd, b"1"), (other, b"2"), (nsqd, b"3"), (other, b"4")):
                node.publish("merged", body)
            wait_until(lambda: len(nsqlookupd.found("merged")) == 2, "both nodes to be known")
            found = ["history", "merged", "--lookupd-http-address", nsqlookupd.http_address]
            assert "1\n2\n3\n" == in_pipe("penstock", *found, "--body", "-n3").stdout
            assert 2 == in_pipe("penstock", *found, "--from=12345").returncode
            position = in_pipe("penstock", *found).stdout.splitlines()[2].split()[0]
            assert "3\n" == in_pipe("penstock", *found, "--from", position, "--body").stdout
            unknown = in_pipe("penstock", *found, "--from=00000000:12345")
            assert (1, True) == (unknown.returncode, "there is no log 00000000" in unknown.stderr)
            follow = ["--follow", "--body", "--from=earliest", "-n4"]
            followed = in_pipe("penstock", *found, *follow)

        assert {"1", "2", "3", "4"} == set(followed.stdout.split())

    def test_a_token_is_sent(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        tokens = tmp_path_factory.mktemp("tokens") / "tokens"
        tokens.write_text("consume,publish secret\n")
        tokens.chmod(0o600)
        with run_nsqd(f"--http-auth-token-file={tokens}") as nsqd:
            nsqd.publish("guarded", b"one")
            without = in_pipe("penstock", *reading(nsqd, "guarded"))
            with_one = in_pipe(
                "penstock", *reading(nsqd, "guarded"), env={"PENSTOCK_HTTP_TOKEN": "secret"}
            )

        assert (1, 0) == (without.returncode, with_one.returncode)
        assert f"penstock: {nsqd.http_address}: a token is needed: --token\n" == without.stderr


def test_ctrl_c_exits_on_a_terminal(nsqd: NsqdProcess) -> None:
    nsqd.publish("typed", b"hello")
    flags = ["--follow", "--from=earliest"]
    with on_terminal("penstock", *reading(nsqd, "typed", *flags)) as terminal:
        terminal.see("hello")
        terminal.press("\x03")

        assert 0 == terminal.end()[0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["nobody-has-it"], "there is no topic nobody-has-it"),
        (["there", "--from=1"], "the message is no longer stored; the first stored one is "),
        (["there", "--from=9000000000000000"], "there is no such message yet; the next one will"),
        (["there", "--from=latest", "--to=earliest"], "the range ends before it begins"),
        (["there", "--nsqd-http-address=127.0.0.1:1"], "127.0.0.1:1: Connection refused"),
    ],
)
def test_errors_are_reported_in_one_line(args: list[str], expected: str, nsqd: NsqdProcess) -> None:
    nsqd.publish("there", b"one")
    env = {"PENSTOCK_NSQD_HTTP_ADDRESS": nsqd.http_address}
    done = in_pipe("penstock", "history", *args, env=env)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert expected in done.stderr


@pytest.mark.parametrize("place", ["yesterday", "2026-13-99T00:00:00Z", "2026-11-15T08:00:00"])
def test_an_invalid_position_is_a_usage_error(place: str) -> None:
    done = in_pipe("penstock", "history", "orders", "--from", place)

    assert 2 == done.returncode
    assert f"'{place}' is not a position in the log: earliest, latest, " in done.stderr


def test_a_node_that_requires_tls_and_a_certificate_works(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    with run_nsqd(
        "--tls-required=true",
        "--tls-client-auth-policy=require-verify",
        "--https-address=127.0.0.1:0",
        f"--tls-root-ca-file={authority.root_ca}",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
    ) as nsqd:
        https = [f"--tls-root-ca-file={authority.root_ca}"]
        known = [*https, f"--tls-cert={client.cert}", f"--tls-key={client.key}"]
        stranger = in_pipe("penstock", *reading(nsqd, "orders", *https))
        guest = in_pipe("penstock", *reading(nsqd, "orders", *known))
        drained = in_pipe("penstock", "drain", nsqd.http_address, *known)

        assert (1, 1) == (stranger.returncode, stranger.stderr.count("\n"))
        assert "there is no topic orders" in guest.stderr
        assert (0, f"{nsqd.http_address} has stopped\n") == (drained.returncode, drained.stderr)
