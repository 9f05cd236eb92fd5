"""to_nsq as a program, in pipes and on a terminal."""

import asyncio
import signal
import time

import pytest
from tests.cli.programs import in_pipe, on_terminal
from tests.tools.tool_process import tool_process

from penstock.common.errors import Error
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until
from penstock.tools import to_nsq
from penstock.tools.to_nsq import RecordSplitter, Throttle


def at(nsqd: NsqdProcess) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


def published(nsqd: NsqdProcess, topic: str) -> list[bytes]:
    """All messages of the topic, in order."""
    answer = nsqd.http("GET", f"/stats?format=json&topic={topic}").json()
    if not answer["topics"]:
        return []
    count = nsqd.stats(topic)["message_count"]
    consumer = nsqd.consumer(topic, "reader", rdy=count)
    return [consumer.message().body for _ in range(count)]


@pytest.mark.parametrize(
    ("data", "flags", "expected"),
    [
        (b"abc\n\nxyz", [], [b"abc", b"xyz"]),
        (b"a,b\n,,c", ["--delimiter=,"], [b"a", b"b\n", b"c"]),
        (b"a\0b", ["--delimiter=\u0001"], [b"a\0b"]),
        (b"", [], []),
    ],
)
def test_records_are_published_whole(
    nsqd: NsqdProcess, topic: str, data: bytes, flags: list[str], expected: list[bytes]
) -> None:
    done = in_pipe("to_nsq", f"--topic={topic}", *flags, at(nsqd), stdin=data)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert expected == published(nsqd, topic)


def test_every_nsqd_gets_every_message_in_order(nsqd: NsqdProcess, topic: str) -> None:
    lines = [b"%d" % number for number in range(2000)]
    with run_nsqd() as other:
        done = in_pipe(
            "to_nsq", f"--topic={topic}", at(nsqd), at(other), stdin=b"\n".join(lines) + b"\n"
        )
        assert 0 == done.returncode
        assert (lines, lines) == (published(nsqd, topic), published(other, topic))


def test_the_rate_is_limited(nsqd: NsqdProcess, topic: str) -> None:
    began = time.monotonic()
    done = in_pipe("to_nsq", f"--topic={topic}", "--rate=20", at(nsqd), stdin=b"x\n" * 21)

    assert 0 == done.returncode
    assert "INFO: Throttling messages rate to max:20/second\n" in done.stderr
    assert 21 == nsqd.stats(topic)["message_count"]
    assert time.monotonic() - began > 0.95


def test_typed_lines_are_published_one_by_one(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    with on_terminal("to_nsq", f"--topic={topic}", at(nsqd)) as to_nsq:
        to_nsq.press("hello\n")
        wait_until(lambda: nsqd.stats(topic)["message_count"] == 1, "the first line")
        to_nsq.press("world\n\x04")
        code, _ = to_nsq.end()

    assert 0 == code
    assert [b"hello", b"world"] == published(nsqd, topic)


def test_a_signal_ends_the_reading_and_loses_nothing(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    with tool_process("to_nsq", f"--topic={topic}", at(nsqd)) as to_nsq:
        to_nsq.stdin.write(b"one\ntwo")
        to_nsq.stdin.flush()
        wait_until(lambda: nsqd.stats(topic)["message_count"] == 1, "the first record")
        to_nsq.send_signal(signal.SIGTERM)
        assert 0 == to_nsq.wait()

    assert [b"one", b"two"] == published(nsqd, topic)


def test_a_record_read_during_the_signal_is_published(nsqd: NsqdProcess, topic: str) -> None:
    prelude = """
import os, signal, time
read = os.read
def read_and_be_told_to_stop(fd, size):
    data = read(fd, size)
    if data:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
    return data
os.read = read_and_be_told_to_stop
"""
    nsqd.post(f"/topic/create?topic={topic}")
    with tool_process("to_nsq", f"--topic={topic}", at(nsqd), prelude=prelude) as to_nsq:
        to_nsq.stdin.write(b"one\ntwo\n")
        to_nsq.stdin.flush()
        assert 0 == to_nsq.wait()

    assert [b"one", b"two"] == published(nsqd, topic)


def test_records_not_published_in_time_after_a_signal_are_counted(
    nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    prelude = "from penstock.tools import to_nsq as p; p.STOP_SECONDS = 0.2"
    flags = (f"--topic={topic}", "--rate=1", at(nsqd))
    with tool_process("to_nsq", *flags, prelude=prelude) as to_nsq:
        to_nsq.stdin.write(b"x\n" * 1000)
        to_nsq.stdin.flush()
        wait_until(lambda: nsqd.stats(topic)["message_count"], "the first record")
        to_nsq.send_signal(signal.SIGTERM)
        assert 1 == to_nsq.wait()
        log = to_nsq.log

    left = 1000 - nsqd.stats(topic)["message_count"]
    reason = "publishing took longer than 0.2 s after the signal"
    expected = f"FATAL: {reason} ({left} records read but not published)"
    assert expected in log


def test_a_refused_record_is_reported_and_earlier_ones_are_stored(topic: str) -> None:
    with run_nsqd("--max-msg-size=100") as nsqd:
        data = b"one\ntwo\n" + b"x" * 101 + b"\nthree\n"
        done = in_pipe("to_nsq", f"--topic={topic}", at(nsqd), stdin=data)

        assert 1 == done.returncode
        assert f"FATAL: {nsqd.tcp_address}: E_BAD_MESSAGE" in done.stderr
        assert done.stderr.endswith(" (2 records read but not published)\n")
        assert [b"one", b"two"] == published(nsqd, topic)


def test_an_unconfirmed_record_is_a_failure(topic: str) -> None:
    with run_nsqd() as nsqd:
        flags = (f"--topic={topic}", "--producer-opt=publish_timeout,300ms", at(nsqd))
        with tool_process("to_nsq", *flags) as to_nsq:
            to_nsq.stdin.write(b"one\n")
            to_nsq.stdin.flush()
            wait_until(lambda: nsqd.http("GET", "/stats?format=json").json()["topics"], "one")
            nsqd.kill()
            to_nsq.stdin.write(b"two\n")
            to_nsq.stdin.flush()
            assert 1 == to_nsq.wait()
            assert "FATAL: not confirmed within 0.3 s: " in to_nsq.log


CASES = [
    (b"", []),
    (b"\n\n", []),
    (b"abc\n\nxyz", [b"abc", b"xyz"]),
    (b"abc\nxyz\n", [b"abc", b"xyz"]),
    (b"\nabc", [b"abc"]),
    (b"a\r\nb", [b"a\r", b"b"]),
    (b"one long record without an end", [b"one long record without an end"]),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
@pytest.mark.parametrize("piece_bytes", [1, 2, 1000])
def test_delimiters_separate_records(data: bytes, expected: list[bytes], piece_bytes: int) -> None:
    splitter = RecordSplitter(b"\n")
    found = []
    for start in range(0, len(data), piece_bytes):
        found += splitter.feed(data[start : start + piece_bytes])
    found += splitter.rest()

    assert expected == found


def test_a_record_is_returned_when_complete() -> None:
    splitter = RecordSplitter(b",")

    assert [] == splitter.feed(b"a")
    assert [b"ab", b"c"] == splitter.feed(b"b,c,d")
    assert [b"d"] == splitter.rest()
    assert [] == splitter.rest()


def test_a_record_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_nsq, "RECORD_BYTES_MAX", 10)
    splitter = RecordSplitter(b"\n")
    splitter.feed(b"x" * 10)

    with pytest.raises(Error, match="no delimiter b'\\\\n' within 10 bytes"):
        splitter.feed(b"x")


class _QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose time advances only by sleeping, without delay."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now


async def take(throttle: Throttle, wanted: int) -> int:
    """Advance the time until the throttle lets a record pass."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _QuickLoop)
    taking = asyncio.ensure_future(throttle.take(wanted))
    while not taking.done():
        await asyncio.sleep(0)
        if not taking.done():
            loop.now += 0.001
    return taking.result()


def test_the_throttle_limits_the_rate() -> None:
    async def scenario() -> None:
        throttle = Throttle(100)
        for _ in range(101):
            assert 1 == await take(throttle, 1)
        loop = asyncio.get_running_loop()
        assert 0.99 < loop.time() < 1.2

    with asyncio.Runner(loop_factory=_QuickLoop) as runner:
        runner.run(scenario())


def test_unused_allowance_is_kept_for_a_second() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _QuickLoop)
        throttle = Throttle(10)
        loop.now += 60.0
        assert 10 == await take(throttle, 1000)
        assert 1 == await take(throttle, 1000)

    with asyncio.Runner(loop_factory=_QuickLoop) as runner:
        runner.run(scenario())


def test_rate_0_does_not_throttle() -> None:
    async def scenario() -> None:
        assert 1000 == await Throttle(0).take(1000)

    asyncio.run(scenario())
