"""nsq_to_file as a program: rotation, SIGHUP, stop and kill lose no message."""

import gzip
import os
import signal
import time
import zlib
from pathlib import Path

import pytest
from tests.tools.tool_process import ToolProcess, tool_process

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.waiting import wait_until

CHANNEL = "nsq_to_file"
HOST = os.uname().nodename.split(".")[0]


def flags(nsqd: NsqdProcess, topic: str, output: Path) -> list[str]:
    return [
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        f"--topic={topic}",
        f"--output-dir={output}",
        "--datetime-format=now",
    ]


def unfinished(nsqd: NsqdProcess, topic: str) -> int:
    stats = nsqd.stats(topic, CHANNEL)
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def publish(nsqd: NsqdProcess, topic: str, bodies: list[bytes]) -> None:
    nsqd.post(f"/mpub?topic={topic}", b"\n".join(bodies))


def publish_first(nsqd: NsqdProcess, topic: str, bodies: list[bytes]) -> None:
    """Publish to a new topic, so that the channel receives the messages."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
    publish(nsqd, topic, bodies)


def lines(folder: Path) -> list[bytes]:
    """The lines of all files, in the order of their names."""
    found: list[bytes] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found += read(path).splitlines()
    return found


def read(path: Path) -> bytes:
    """The readable part of a file, whose end may be torn."""
    if path.suffix != ".gz":
        return path.read_bytes()
    data, rest = b"", path.read_bytes()
    while rest:
        member = zlib.decompressobj(31)
        try:
            data += member.decompress(rest)
        except zlib.error:
            break
        rest = member.unused_data
    return data


SLOW_DISK = """
import os, time
fsync = os.fsync
os.fsync = lambda fd: (time.sleep(0.2), fsync(fd))
"""


def hang_up(archive: ToolProcess, times: int = 1) -> None:
    archive.send_signal(signal.SIGHUP)
    archive.logs("SIGHUP, syncing and finishing files", count=times)


def test_every_message_is_a_line_and_finished_by_the_end(
    nsqd: NsqdProcess, topic: str, tmp_path: Path
) -> None:
    sent = [b"%d" % number for number in range(1234)]
    publish_first(nsqd, topic, sent)
    with tool_process("nsq_to_file", *flags(nsqd, topic, tmp_path)) as archive:
        wait_until(lambda: len(lines(tmp_path)) == len(sent), "all to be written")
        archive.stop()

    assert [f"{topic}.{HOST}.now.log"] == [path.name for path in tmp_path.iterdir()]
    assert sent == lines(tmp_path)
    assert 0 == unfinished(nsqd, topic)


def test_a_message_is_finished_when_it_is_synced_and_not_before(
    nsqd: NsqdProcess, topic: str, tmp_path: Path
) -> None:
    publish_first(nsqd, topic, [b"opens the file"])
    with tool_process("nsq_to_file", *flags(nsqd, topic, tmp_path)) as archive:
        wait_until(lambda: unfinished(nsqd, topic) == 0, "the file to be there")
        publish(nsqd, topic, [b"waits"])
        wait_until(lambda: b"waits" in lines(tmp_path), "it to be written")
        assert 1 == unfinished(nsqd, topic)
        hang_up(archive)
        wait_until(lambda: unfinished(nsqd, topic) == 0, "it to be synced")
        archive.stop()


def test_the_sync_interval_finishes_waiting_messages(
    nsqd: NsqdProcess, topic: str, tmp_path: Path
) -> None:
    publish_first(nsqd, topic, [b"one"])
    quick = "--sync-interval=100ms"
    with tool_process("nsq_to_file", *flags(nsqd, topic, tmp_path), quick) as archive:
        wait_until(lambda: unfinished(nsqd, topic) == 0, "the first")
        publish(nsqd, topic, [b"two"])
        wait_until(lambda: unfinished(nsqd, topic) == 0, "the second")
        archive.stop()

    assert [b"one", b"two"] == lines(tmp_path)


def test_it_syncs_before_nsqd_waits_for_answers(topic: str, tmp_path: Path) -> None:
    """Two nsqds may have 10 messages in flight each, and only one has messages."""
    with run_nsqd() as busy, run_nsqd() as idle:
        publish_first(busy, topic, [b"%d" % number for number in range(100)])
        publish_first(idle, topic, [b"idle"])
        both = [*flags(busy, topic, tmp_path), f"--nsqd-tcp-address={idle.tcp_address}"]
        with tool_process("nsq_to_file", *both, "--max-in-flight=20") as archive:
            wait_until(lambda: len(set(lines(tmp_path))) == 101, "all to be written")
            archive.stop()


def test_sighup_starts_a_new_file(nsqd: NsqdProcess, topic: str, tmp_path: Path) -> None:
    output, away = tmp_path / "out", tmp_path / "away"
    publish_first(nsqd, topic, [b"one"])
    with tool_process("nsq_to_file", *flags(nsqd, topic, output)) as archive:
        wait_until(lambda: output.exists() and lines(output), "the first")
        (output / f"{topic}.{HOST}.now.log").rename(away)
        hang_up(archive)
        publish(nsqd, topic, [b"two"])
        wait_until(lambda: lines(output) == [b"two"], "the second, in a file of its own")
        archive.stop()

    assert b"one\n" == away.read_bytes()
    assert 0 == unfinished(nsqd, topic)


def test_a_stop_waits_for_a_running_sighup(nsqd: NsqdProcess, topic: str, tmp_path: Path) -> None:
    publish_first(nsqd, topic, [b"one"])
    to = flags(nsqd, topic, tmp_path)
    with tool_process("nsq_to_file", *to, prelude=SLOW_DISK) as archive:
        wait_until(lambda: unfinished(nsqd, topic) == 0, "the first")
        publish(nsqd, topic, [b"two"])
        wait_until(lambda: lines(tmp_path) == [b"one", b"two"], "the second")
        hang_up(archive)
        wait_until(lambda: unfinished(nsqd, topic) == 0, "only the end of the file to be left")
        archive.stop()

    assert [b"one", b"two"] == lines(tmp_path)


@pytest.mark.parametrize("compression", [[], ["--gzip"]], ids=["plain", "gzip"])
def test_rotation_by_size_through_a_work_dir(
    nsqd: NsqdProcess, topic: str, tmp_path: Path, compression: list[str]
) -> None:
    sent = [b"%06d" % number for number in range(3000)]
    output, work = tmp_path / "out", tmp_path / "work"
    rotation = ("--rotate-size=7000", f"--work-dir={work}", *compression)
    publish_first(nsqd, topic, sent)
    with tool_process("nsq_to_file", *flags(nsqd, topic, output), *rotation) as archive:
        # When all are finished, or at least written, all were received.
        wait_until(lambda: nsqd.shows(topic, CHANNEL, depth=0), "all to be taken")
        archive.stop()

    end = ".gz" if compression else ""
    names = [f"{topic}.{HOST}-{number:06d}.now.log{end}" for number in range(3)]
    assert (names, []) == (sorted(os.listdir(output)), os.listdir(work))
    assert sent == lines(output)
    assert 7007 == len(read(output / names[0]))
    if compression:
        for name in names:
            with gzip.open(output / name) as whole:  # checks all gzip members
                whole.read()


@pytest.mark.crash
@pytest.mark.parametrize(
    "how",
    [[], ["--gzip", "--rotate-size=20000"], ["--rotate-interval=50ms", "--work-dir={work}"]],
    ids=["appending", "gzip", "work dir"],
)
def test_repeated_kills_lose_no_message(topic: str, tmp_path: Path, how: list[str]) -> None:
    """After each kill, each message is in a file or still in the channel."""
    output, work = tmp_path / "out", tmp_path / "work"
    output.mkdir()
    sent: list[bytes] = []
    with run_nsqd() as nsqd:
        # Enough unsynced messages that there are some at any moment.
        options = [*flags(nsqd, topic, output), "--sync-interval=50ms", "--max-in-flight=2500"]
        options += [each.format(work=work) for each in how]
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        for round_ in range(1, 5):
            with tool_process("nsq_to_file", *options) as archive:
                deadline = time.monotonic() + 60
                while len(sent) - unfinished(nsqd, topic) < 1000 * round_:
                    assert time.monotonic() < deadline, archive.log
                    more = [b"%09d" % number for number in range(len(sent), len(sent) + 50)]
                    sent += more
                    publish(nsqd, topic, more)
                archive.kill()
            finished = len(sent) - unfinished_after_disconnect(nsqd, topic)
            assert finished <= len(set(lines(tmp_path)) & set(sent))
        with tool_process("nsq_to_file", *options) as archive:
            publish(nsqd, topic, [b"last"])
            wait_until(lambda: unfinished(nsqd, topic) == 0, "the rest to be done")
            archive.stop()

    found = lines(tmp_path)
    assert set(sent) <= set(found)
    # At each kill, one file may end with an incomplete line.
    assert len(set(found) - {*sent, b"last"}) <= 4


def unfinished_after_disconnect(nsqd: NsqdProcess, topic: str) -> int:
    wait_until(lambda: nsqd.shows(topic, CHANNEL, in_flight_count=0), "nsqd to notice")
    return unfinished(nsqd, topic)


def test_a_disk_failure_ends_it_and_finishes_nothing(
    nsqd: NsqdProcess, topic: str, tmp_path: Path
) -> None:
    publish_first(nsqd, topic, [b"one"])
    (tmp_path / "day").write_text("no folder")
    named = ["--filename-format=day/<TOPIC>.log"]
    with tool_process("nsq_to_file", *flags(nsqd, topic, tmp_path), *named) as archive:
        assert 1 == archive.wait()
        assert "FATAL: unable to " in archive.log

    assert 1 == unfinished_after_disconnect(nsqd, topic)


def test_the_topic_pattern_has_the_syntax_of_re2(tmp_path: Path) -> None:
    with (
        run_nsqlookupd() as lookupd,
        run_nsqd(
            f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1"
        ) as nsqd,
    ):
        nsqd.publish("orders_eu", b"one")
        nsqd.publish("orders2", b"two")
        wait_until(lambda: lookupd.found("orders_eu") and lookupd.found("orders2"), "nsqd")
        options = (
            f"--lookupd-http-address={lookupd.http_address}",
            "--topic-pattern=^[[:alpha:]_]+$",
            "--filename-format=<TOPIC>.log",
            f"--output-dir={tmp_path}",
        )
        with tool_process("nsq_to_file", *options) as archive:
            wait_until(lambda: lines(tmp_path) == [b"one"], "the matching topic")
            archive.stop()

    assert ["orders_eu.log"] == os.listdir(tmp_path)


def test_matching_topics_are_archived_including_new_ones(tmp_path: Path) -> None:
    with (
        run_nsqlookupd() as lookupd,
        run_nsqd(
            f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1"
        ) as nsqd,
    ):
        nsqd.publish("orders.eu", b"one")
        nsqd.publish("invoices", b"two")
        wait_until(lambda: lookupd.found("orders.eu") and lookupd.found("invoices"), "nsqd")
        options = (
            f"--lookupd-http-address={lookupd.http_address}",
            "--topic-pattern=^orders",
            "--topic-refresh=500ms",
            "--filename-format=<TOPIC>.log",
            f"--output-dir={tmp_path}",
        )
        with tool_process("nsq_to_file", *options) as archive:
            wait_until(lambda: lines(tmp_path) == [b"one"], "the first topic")
            nsqd.publish("orders.us", b"three")
            wait_until(lambda: len(lines(tmp_path)) == 2, "the new topic")
            archive.stop()

    assert ["orders.eu.log", "orders.us.log"] == sorted(os.listdir(tmp_path))
