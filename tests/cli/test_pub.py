"""penstock pub as a program: messages from arguments, a pipe, a file, or a keyboard."""

import os
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe, on_terminal

from penstock.testing.nsqd import NsqdProcess
from penstock.testing.nsqlookupd import NsqlookupdProcess
from penstock.testing.waiting import wait_until


def publishing(nsqd: NsqdProcess, topic: str, *args: str) -> list[str]:
    return ["pub", topic, "--nsqd-tcp-address", nsqd.tcp_address, *args]


def stored(nsqd: NsqdProcess, topic: str) -> list[str]:
    lines = nsqd.http("GET", f"/topic/messages?topic={topic}").body.splitlines()
    return [line.decode().split('"body":"')[1].removesuffix('"}') for line in lines]


class TestInAPipe:
    def test_each_argument_is_a_message(self, nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *publishing(nsqd, "arguments", "one", "two words"))

        assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
        assert ["one", "two words"] == stored(nsqd, "arguments")

    def test_each_line_that_is_not_empty_is_a_message(self, nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *publishing(nsqd, "lines"), stdin=b"one\n\n two\r\nthree")

        assert 0 == done.returncode
        assert ["one", " two\\r", "three"] == stored(nsqd, "lines")

    def test_a_file_is_published_by_line_or_whole(self, nsqd: NsqdProcess, tmp_path: Path) -> None:
        file = tmp_path / "messages"
        file.write_bytes(b"one\ntwo\n")
        flags = ["--file", str(file)]
        assert 0 == in_pipe("penstock", *publishing(nsqd, "file", *flags)).returncode
        assert 0 == in_pipe("penstock", *publishing(nsqd, "file", *flags, "--whole")).returncode

        assert ["one", "two", "one\\ntwo\\n"] == stored(nsqd, "file")

    def test_more_than_fits_into_a_command_is_published(self, nsqd: NsqdProcess) -> None:
        lines = b"".join(b"%0200d\n" % number for number in range(20_000))
        assert 0 == in_pipe("penstock", *publishing(nsqd, "many"), stdin=lines).returncode

        assert 20_000 == nsqd.stats("many")["message_count"]

    def test_a_message_can_be_deferred(self, nsqd: NsqdProcess) -> None:
        done = in_pipe("penstock", *publishing(nsqd, "deferred", "later", "--defer", "1m"))

        assert 0 == done.returncode
        assert b'"due_ns":' in nsqd.http("GET", "/topic/messages?topic=deferred").body

    def test_an_nsqd_is_found_by_nsqlookupd(
        self, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess
    ) -> None:
        nsqd.post("/topic/create?topic=anything")
        wait_until(lambda: nsqlookupd.found("anything"), "nsqd to be known")
        env = {"PENSTOCK_LOOKUPD_HTTP_ADDRESS": nsqlookupd.http_address}

        assert 0 == in_pipe("penstock", "pub", "found", "hello", env=env).returncode
        assert ["hello"] == stored(nsqd, "found")


class TestOnATerminal:
    def test_typed_lines_are_published_one_by_one(self, nsqd: NsqdProcess) -> None:
        nsqd.post("/topic/create?topic=typed")
        with on_terminal("penstock", *publishing(nsqd, "typed")) as terminal:
            terminal.see("Enter one message per line; Ctrl-D ends.")
            terminal.press("hello\n")
            wait_until(lambda: stored(nsqd, "typed") == ["hello"], "the first line")
            terminal.press("bye\n\x04")
            code, shown = terminal.end()

        assert 0 == code
        assert "2 messages published to typed" in shown
        assert ["hello", "bye"] == stored(nsqd, "typed")

    def test_a_large_file_has_a_progress_bar(self, nsqd: NsqdProcess, tmp_path: Path) -> None:
        file = tmp_path / "long"
        file.write_bytes(b"".join(b"%099d\n" % number for number in range(60_000)))
        with on_terminal("penstock", *publishing(nsqd, "long", "--file", str(file))) as terminal:
            code, shown = terminal.end()

        assert 0 == code
        assert " %" in shown
        assert "60,000 messages published to long" in shown


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["orders", "x", "--nsqd-tcp-address=127.0.0.1:1"], "penstock: 127.0.0.1:1: "),
        (["orders", "x", "--nsqd-tcp-address=nonsense"], "penstock: not an address (host:port): "),
    ],
)
def test_errors_are_reported_in_one_line(args: list[str], expected: str, nsqd: NsqdProcess) -> None:
    env = {"PENSTOCK_NSQD_TCP_ADDRESS": nsqd.tcp_address}
    done = in_pipe("penstock", "pub", *args, env=env)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert done.stderr.startswith(expected)


def test_the_error_counts_the_messages_published_before(nsqd: NsqdProcess) -> None:
    lines = b"x\n" * 600_000 + b"y" * 2_000_000 + b"\n"
    done = in_pipe("penstock", *publishing(nsqd, "refused"), stdin=lines)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert "E_BAD_MESSAGE" in done.stderr
    assert " (after " in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["orders", "x", "--file", os.devnull],
        ["orders", "x", "--whole"],
        ["orders", ""],
        ["orders", "x", "--defer", "soon"],
        ["orders", "--file", "not-there"],
        ["or ders", "x"],
    ],
)
def test_a_wrong_command_line_exits_with_2(args: list[str]) -> None:
    assert 2 == in_pipe("penstock", "pub", *args).returncode
