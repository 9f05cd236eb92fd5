"""nsq_tail as a program, in pipes and on a terminal, mostly together with to_nsq."""

import os
import re
import subprocess
import sys
import time

import pytest
from tests.cli.programs import in_pipe, on_terminal, unread_bytes
from tests.tools.tool_process import tool_process

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until


def at(nsqd: NsqdProcess) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


def create(nsqd: NsqdProcess, topic: str, channel: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")


def test_nsq_tail_prints_the_messages_that_to_nsq_publishes(nsqd: NsqdProcess, topic: str) -> None:
    lines = [b"%d %s" % (number, os.urandom(20).hex().encode()) for number in range(5000)]
    create(nsqd, topic, "c")
    tail_args = (f"--topic={topic}", "--channel=c", "-n=5000", at(nsqd))
    with tool_process("nsq_tail", *tail_args) as tail:
        done = in_pipe("to_nsq", f"--topic={topic}", at(nsqd), stdin=b"\n".join(lines))
        assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
        shown = tail.stdout.read().splitlines()
        assert 0 == tail.wait()

    assert lines == shown
    # All messages are finished, the last one included.
    assert nsqd.shows(topic, "c", depth=0, in_flight_count=0, requeue_count=0)


def test_it_consumes_no_more_than_it_prints(nsqd: NsqdProcess, topic: str) -> None:
    create(nsqd, topic, "c")
    nsqd.publish(topic, *[b"%d" % number for number in range(10)])
    done = in_pipe("nsq_tail", f"--topic={topic}", "--channel=c", "-n", "3", at(nsqd))

    assert (0, "0\n1\n2\n") == (done.returncode, done.stdout)
    wait_until(lambda: nsqd.shows(topic, "c", depth=7, in_flight_count=0), "the rest to be there")


def test_print_topic_prefixes_each_line(nsqd: NsqdProcess, topic: str) -> None:
    topics = [f"{topic}-1", f"{topic}-2"]
    for each in topics:
        create(nsqd, each, "c")
        nsqd.publish(each, b"one", b"two")
    flags = [f"--topic={each}" for each in topics]
    done = in_pipe("nsq_tail", *flags, "--channel=c", "-n=4", "--print-topic", at(nsqd))

    expected = [f"{each} | {body}" for each in topics for body in ("one", "two")]
    assert expected == sorted(done.stdout.splitlines())


def test_its_ephemeral_channel_is_deleted_on_exit(nsqd: NsqdProcess, topic: str) -> None:
    def channels() -> list[str]:
        return [each["channel_name"] for each in nsqd.stats(topic)["channels"]]

    nsqd.post(f"/topic/create?topic={topic}")
    with tool_process("nsq_tail", f"--topic={topic}", at(nsqd)) as tail:
        [name] = wait_until(channels, "the channel")
        nsqd.publish(topic, b"one")
        # Each message is printed at once, although standard output is a pipe.
        assert b"one\n" == tail.stdout.readline()
        tail.stop()

    assert re.fullmatch(r"tail\d{6}#ephemeral", name)
    wait_until(lambda: not channels(), "the channel to go")


def test_a_closed_pipe_ends_it_silently(nsqd: NsqdProcess, topic: str) -> None:
    create(nsqd, topic, "c")
    nsqd.publish(topic, b"one")
    with tool_process("nsq_tail", f"--topic={topic}", "--channel=c", at(nsqd)) as tail:
        assert b"one\n" == tail.stdout.readline()
        tail.stdout.close()
        assert (0, "") == (tail.wait(), tail.log)


def test_unprinted_messages_are_not_finished(nsqd: NsqdProcess, topic: str) -> None:
    """The pipe is full, so that a write is in progress when its reader exits."""
    create(nsqd, topic, "c")
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x" * 1000] * 1000))
    with tool_process("nsq_tail", f"--topic={topic}", "--channel=c", at(nsqd)) as tail:
        tail.stdout.read(1000)
        wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=200), "the pipe to be full")
        tail.stdout.close()
        assert (0, "") == (tail.wait(), tail.log)

    stats = nsqd.stats(topic, "c")
    assert stats["depth"] >= 1000 - 200 - 66  # messages in the pipe count as read


def test_one_signal_ends_it_while_the_output_blocks(nsqd: NsqdProcess, topic: str) -> None:
    create(nsqd, topic, "c")
    nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x" * 1000] * 1000))
    with tool_process("nsq_tail", f"--topic={topic}", "--channel=c", at(nsqd)) as tail:
        wait_until(lambda: unread_bytes(tail.stdout) > 60_000, "the pipe to be full")
        tail.stop()
        shown = tail.stdout.read().count(b"\n")

    wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=0), "the rest to be given back")
    assert nsqd.stats(topic, "c")["depth"] >= 1000 - shown


def test_messages_waiting_for_the_output_are_touched(topic: str) -> None:
    """More messages than the pipe and max-in-flight can hold, so that some always wait."""
    count = 1000
    with run_nsqd("--msg-timeout=6s") as nsqd:
        create(nsqd, topic, "c")
        nsqd.post(f"/mpub?topic={topic}", b"\n".join([b"x" * 1000] * count))
        with tool_process("nsq_tail", f"--topic={topic}", "--channel=c", at(nsqd)) as tail:
            wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=200), "the pipe to be full")
            time.sleep(6.5)  # longer than the message timeout
            assert [b"x" * 1000 + b"\n"] * count == [tail.stdout.readline() for _ in range(count)]
            wait_until(lambda: nsqd.shows(topic, "c", in_flight_count=0), "all to be finished")
            tail.stop()
        assert nsqd.shows(topic, "c", depth=0, timeout_count=0)


def test_a_write_error_is_reported_and_the_message_not_finished(
    nsqd: NsqdProcess, topic: str
) -> None:
    create(nsqd, topic, "c")
    nsqd.publish(topic, b"one")
    command = [sys.executable, "-m", "penstock.cli.nsq_tail", f"--topic={topic}", "--channel=c"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*command, at(nsqd)], stdout=full, stderr=subprocess.PIPE, check=False, timeout=120
        )

    assert 1 == done.returncode
    expected = b"FATAL: standard output cannot be written: No space left on device\n"
    assert done.stderr.endswith(expected)
    wait_until(lambda: nsqd.shows(topic, "c", depth=1, in_flight_count=0), "it to be back")


@pytest.mark.parametrize(
    ("tool", "closed", "expected"),
    [
        ("nsq_tail", ">&-", "FATAL: standard output is closed"),
        ("to_nsq", "<&-", "FATAL: standard input is closed"),
        ("to_nsq", "2>&-", ""),
    ],
)
def test_a_closed_standard_file_is_an_error(
    nsqd: NsqdProcess, topic: str, tool: str, closed: str, expected: str
) -> None:
    command = f"{sys.executable} -m penstock.cli.{tool} --topic={topic} {at(nsqd)} {closed}"
    done = subprocess.run(
        ["sh", "-c", command], input="x", capture_output=True, text=True, check=False, timeout=120
    )

    assert bool(expected) == bool(done.returncode)
    assert expected == done.stderr[-len(expected) - 1 :].strip()


def test_on_a_terminal_it_ends_with_ctrl_c(nsqd: NsqdProcess, topic: str) -> None:
    create(nsqd, topic, "c")
    nsqd.publish(topic, b"hello")
    with on_terminal("nsq_tail", f"--topic={topic}", "--channel=c", at(nsqd)) as tail:
        tail.see("hello")
        tail.press("\x03")
        code, shown = tail.end()

    assert 0 == code
    assert "SIGINT, stopping" in shown


def test_topics_are_found_by_lookupd(topic: str) -> None:
    with (
        run_nsqlookupd() as lookupd,
        run_nsqd(
            f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1"
        ) as nsqd,
    ):
        create(nsqd, topic, "c")
        nsqd.publish(topic, b"found")
        wait_until(lambda: lookupd.found(topic), "nsqd to register")
        flags = (f"--lookupd-http-address={lookupd.http_address}", "--channel=c", "-n=1")
        done = in_pipe("nsq_tail", f"--topic={topic}", *flags)

    assert (0, "found\n", "") == (done.returncode, done.stdout, done.stderr)


def test_an_unreachable_address_is_named(topic: str) -> None:
    done = in_pipe("nsq_tail", f"--topic={topic}", "--nsqd-tcp-address=127.0.0.1:1")

    assert 1 == done.returncode
    assert "FATAL: 127.0.0.1:1: Connection refused\n" in done.stderr
