"""Several shards under one supervisor, as real processes."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe

from penstock.client.blocking import Consumer
from penstock.client.config import ClientConfig
from penstock.nsqd.supervisor import STOP_BEATS
from penstock.protocol import commands
from penstock.storage import check_data_path
from penstock.testing.daemon import running as process_running
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import run_nsqlookupd
from penstock.testing.raw_client import RawClient, WireError
from penstock.testing.waiting import wait_until

TOPIC, CHANNEL = "t", "c"


class Shards:
    """A supervisor and its shards, which are found by its log."""

    def __init__(self, supervisor: NsqdProcess) -> None:
        self.supervisor = supervisor

    def addresses(self, protocol: str) -> dict[int, str]:
        """Addresses of the shards, also of those that have ended."""
        found = re.findall(rf"\[nsqd/(\d+)\] .* {protocol}: listening on (\S+)\n", self.log)
        return {int(number): address for number, address in found}

    def process_id(self, number: int) -> int:
        found = re.findall(rf"\[nsqd\] .* shard {number} is process (\d+)\n", self.log)
        return int(found[-1])

    def publish(self, number: int, *bodies: bytes) -> list[bytes]:
        with RawClient(self.addresses("TCP")[number]) as producer:
            for body in bodies:
                producer.call(commands.pub(TOPIC, body))
        return list(bodies)

    def get(self, number: int, target: str) -> bytes:
        connection = HTTPConnection(self.addresses("HTTP")[number], timeout=60)
        try:
            connection.request("GET", target)
            return connection.getresponse().read()
        finally:
            connection.close()

    def wait_for_log(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= times, text)

    @property
    def log(self) -> str:
        return self.supervisor.log


@contextmanager
def running(path: Path, *flags: str, serving: int = 2) -> Iterator[Shards]:
    """Starts this many shards; checks all data at the end."""
    with run_nsqd(*flags, data_path=path) as nsqd:
        shards = Shards(nsqd)
        wait_until(lambda: len(shards.addresses("HTTP")) == serving, "all shards to serve")
        yield shards
    for folder in (path, path / "shard-1"):
        assert not [finding for finding in check_data_path(folder) if finding.is_damage]


def is_gone(pid: int) -> bool:
    """Also if the process is a zombie."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True


def test_a_consumer_gets_the_messages_of_all_shards_also_of_a_killed_one(tmp_path: Path) -> None:
    with run_nsqlookupd() as nsqlookupd:
        lookupd = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
        flags = ("--shards=2", "--broadcast-address=127.0.0.1", lookupd)
        with running(tmp_path, *flags) as shards:
            acknowledged = shards.publish(0, b"1", b"2") + shards.publish(1, b"3", b"4")
            killed, served_at = shards.process_id(1), shards.addresses("HTTP")[1]
            os.kill(killed, signal.SIGKILL)
            shards.wait_for_log(f"shard 1 (process {killed}) was killed by SIGKILL; next start in")
            wait_until(lambda: shards.addresses("HTTP")[1] != served_at, "shard 1 to serve again")
            acknowledged += shards.publish(0, b"5") + shards.publish(1, b"6")

            received: set[bytes] = set()
            # At the first poll, nsqlookupd may not know the new address of shard 1 yet.
            config = ClientConfig(lookupd_poll_interval=0.5)
            lookupd = nsqlookupd.http_address
            with Consumer(TOPIC, CHANNEL, lookupd=lookupd, config=config) as consumer:
                while received != set(acknowledged):
                    message = consumer.receive(timeout=60)
                    assert message is not None, f"only {received}"
                    received.add(message.body)
                    message.finish()


def test_each_shard_is_a_node(tmp_path: Path) -> None:
    with running(tmp_path, "--shards=2", "--node-id=7") as shards:
        config = [json.loads(shards.get(1, f"/config/{key}")) for key in ("id", "shards")]
        prefix = shards.get(1, "/config/statsd_prefix").decode()
        folder = shards.get(1, "/config/data_path").decode()

        assert [8, 2] == config
        assert str(tmp_path / "shard-1") == folder
        assert prefix.endswith(f"_{shards.addresses('HTTP')[1].rpartition(':')[2]}.")


def test_a_signal_to_all_processes_counts_once(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes, and systemd sends SIGTERM to all."""
    with running(tmp_path, "--shards=2") as shards:
        for number in (0, 1):
            os.kill(shards.process_id(number), signal.SIGTERM)
        assert b"OK" == shards.get(1, "/ping")
        shards.supervisor.terminate()

        assert 2 == shards.log.count("SIGTERM, stopping\n")
        assert 2 == shards.log.count("NSQ: bye\n")


def test_a_second_signal_forces_the_stop(tmp_path: Path) -> None:
    """A client that does not close its connection delays the first one."""
    with running(tmp_path, "--shards=2") as shards:
        with RawClient(shards.addresses("TCP")[1]) as client:
            client.call(commands.pub(TOPIC, b"x"))
            shards.supervisor.send_signal(signal.SIGTERM)
            shards.wait_for_log("SIGTERM, stopping\n", times=2)
            shards.supervisor.send_signal(signal.SIGINT)
            exit_code = shards.supervisor.wait()

        assert 1 == exit_code
        assert "SIGINT again, exiting without a clean stop\n" in shards.log


def tell_three_times(shards: Shards) -> None:
    """Sends three signals to stop, one by one: equal pending signals would be merged. The second
    follows when shard 1 blocks, because it would else make the shard exit."""
    for number, times in ((signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGTERM, 2)):
        shards.supervisor.send_signal(number)
        shards.wait_for_log(f"{number.name}, forwarded to the shards\n", times=times)
        shards.wait_for_log("blocked\n")


# nsqd, with ten heartbeats a second, whose shard 1 blocks its event loop when it is to stop, until
# the file exists that the environment names.
BLOCKING_NSQD = """
import asyncio, os, sys, time
from penstock.cli.nsqd import main
from penstock.nsqd import daemon, shard_process, supervisor

shard_process.HEARTBEAT_SECONDS = supervisor.HEARTBEAT_SECONDS = 0.1
original_stop = daemon.Nsqd.stop

async def stop(nsqd):
    if nsqd.options.data_path.endswith("shard-1"):
        nsqd.log.info("blocked")
        while not os.path.exists(os.environ["RELEASE_FILE"]):
            time.sleep(0.01)
        await asyncio.sleep(0.1)
    await original_stop(nsqd)

daemon.Nsqd.stop = stop
sys.exit(main())
"""


class BlockingNsqd(NsqdProcess):
    def _command(self) -> list[str]:
        python, _, _, *arguments = super()._command()
        return [python, "-c", BLOCKING_NSQD, *arguments]


@contextmanager
def running_with_a_blocking_shard(
    path: Path, release: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shards]:
    monkeypatch.setenv("RELEASE_FILE", str(release))
    with process_running(lambda log_fd: BlockingNsqd(path, ["--shards=2"], log_fd)) as nsqd:
        shards = Shards(nsqd)
        wait_until(lambda: len(shards.addresses("HTTP")) == 2, "all shards to serve")
        yield shards


def test_a_third_signal_kills_a_blocked_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data_path := tmp_path / "data").mkdir()
    with running_with_a_blocking_shard(data_path, tmp_path / "go", monkeypatch) as shards:
        process_id = shards.process_id(1)
        tell_three_times(shards)

        assert 1 == shards.supervisor.wait()
        reason = "still runs after the last signal to stop: it is killed"
        assert f"shard 1 (process {process_id}) {reason}\n" in shards.log


def test_after_a_third_signal_shards_have_some_time_to_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data_path := tmp_path / "data").mkdir()
    release = tmp_path / "go"
    with running_with_a_blocking_shard(data_path, release, monkeypatch) as shards:
        process_id = shards.process_id(1)
        tell_three_times(shards)
        release.touch()

        assert 1 == shards.supervisor.wait()
        assert f"shard 1 (process {process_id}) ended with exit code 1\n" in shards.log


def test_a_suspended_shard_is_reported_until_it_responds(tmp_path: Path) -> None:
    def unresponsive_shards() -> bytes:
        line = re.search(
            rb"^nsqd_unresponsive_shards (\d+)$", shards.get(0, "/metrics"), re.MULTILINE
        )
        assert line
        return line[1]

    with running(tmp_path, "--shards=2") as shards:
        process_id = shards.process_id(1)
        at_first = unresponsive_shards()
        os.kill(process_id, signal.SIGSTOP)
        silent = "has not responded for 10 s: it is suspended or blocked"
        wait_until(lambda: silent in shards.log, "the error", seconds=60)
        wait_until(lambda: unresponsive_shards() == b"1", "the metric")
        os.kill(process_id, signal.SIGCONT)
        shards.wait_for_log(f"shard 1 (process {process_id}) responds again\n")
        wait_until(lambda: unresponsive_shards() == b"0", "the metric")

        assert b"0" == at_first
        assert f"ERROR: shard 1 (process {process_id}) {silent}\n" in shards.log
        assert b"OK" == shards.get(1, "/ping")


def test_a_stop_resumes_a_suspended_shard(tmp_path: Path) -> None:
    with running(tmp_path, "--shards=2") as shards:
        os.kill(shards.process_id(1), signal.SIGSTOP)
        shards.supervisor.terminate()

        assert 2 == shards.log.count("NSQ: bye\n")


def test_a_stop_kills_a_shard_that_stays_silent_and_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data_path := tmp_path / "data").mkdir()
    with running_with_a_blocking_shard(data_path, tmp_path / "go", monkeypatch) as shards:
        process_id = shards.process_id(1)
        shards.publish(1, b"acknowledged")
        shards.supervisor.send_signal(signal.SIGTERM)
        exit_code = shards.supervisor.wait(seconds=60)
        reason = f"has not responded for {STOP_BEATS * 0.1:g} s while stopping: it is killed"

        assert 1 == exit_code
        assert f"shard 1 (process {process_id}) {reason}\n" in shards.log
        assert "shard 0 has ended\n" in shards.log

    with (
        running(data_path, "--shards=2") as shards,
        RawClient(shards.addresses("TCP")[1]) as consumer,
    ):
        consumer.subscribe(TOPIC, CHANNEL, rdy=1)
        assert b"acknowledged" == consumer.message().body


def test_sighup_reaches_all_shards(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read  a-token\n")
    tokens.chmod(0o600)
    with running(tmp_path, "--shards=2", f"--http-auth-token-file={tokens}") as shards:
        shards.supervisor.send_signal(signal.SIGHUP)
        shards.wait_for_log("SIGHUP, tokens reloaded\n", times=2)


def test_all_shards_can_be_drained(tmp_path: Path) -> None:
    with running(tmp_path, "--shards=2", "--sigterm=drain") as shards:
        with RawClient(shards.addresses("TCP")[1]) as consumer:
            consumer.subscribe(TOPIC, CHANNEL, rdy=1)
            shards.publish(1, b"left")
            message = consumer.message()
            shards.supervisor.send_signal(signal.SIGTERM)
            shards.wait_for_log("shard 0 has ended\n")
            assert shards.supervisor.is_running
            consumer.send(commands.fin(message.id))
            exit_code = shards.supervisor.wait()

        assert 0 == exit_code
        assert 2 == shards.log.count("NSQ: drained\n")


def test_shards_stop_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--shards=2") as shards:
        shards.publish(1, b"x")
        process_ids = [shards.process_id(number) for number in (0, 1)]
        shards.supervisor.kill()
        wait_until(lambda: all(map(is_gone, process_ids)), "the shards to end")

        assert 2 == shards.log.count("NSQ: bye\n")


def test_a_shard_that_cannot_start_stops_all(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as occupant:
        occupant.bind(str(tmp_path / "socket.1"))
        occupant.listen()
        done = in_pipe(
            "nsqd",
            "--shards=2",
            f"--tcp-address={tmp_path}/socket",
            "--http-address=127.0.0.1:0",
            f"--data-path={tmp_path}",
        )

    assert 1 == done.returncode
    assert f"FATAL: listen ({tmp_path}/socket.1) failed - address already in use\n" in done.stderr
    assert "before it served: all are stopped\n" in done.stderr


def test_a_missing_data_path_is_not_created(tmp_path: Path) -> None:
    done = in_pipe("nsqd", "--shards=2", f"--data-path={tmp_path}/missing")

    assert 1 == done.returncode
    expected = f"FATAL: cannot make {tmp_path}/missing/shard-1 - No such file or directory\n"
    assert done.stderr.endswith(expected)


def test_a_retiring_shard_is_drained(tmp_path: Path) -> None:
    with running(tmp_path, "--shards=2") as shards:
        with RawClient(shards.addresses("TCP")[1]) as consumer:
            consumer.subscribe(TOPIC, CHANNEL, rdy=0)
        shards.publish(0, b"of shard 0")
        shards.publish(1, b"of shard 1")

    with running(tmp_path) as shards:
        with pytest.raises(WireError, match="draining"):
            shards.publish(1, b"new")
        with RawClient(shards.addresses("TCP")[1]) as consumer:
            consumer.subscribe(TOPIC, CHANNEL, rdy=1)
            message = consumer.message()
            assert b"of shard 1" == message.body
            consumer.send(commands.fin(message.id))
            shards.wait_for_log(f"shard 1 is drained; {tmp_path}/shard-1 may be deleted\n")
        shards.publish(0, b"another")
        topic = json.loads(shards.get(0, f"/stats?format=json&topic={TOPIC}"))["topics"][0]

        assert 2 == topic["depth"]


def test_a_retiring_shard_that_is_stopped_is_not_reported_as_drained(tmp_path: Path) -> None:
    """A closed terminal stops nsqd; its remaining messages must not be deleted."""
    (tmp_path / "shard-1").mkdir()
    with run_nsqd(data_path=tmp_path / "shard-1") as nsqd:
        nsqd.publish(TOPIC, b"left")

    with running(tmp_path) as shards:
        shards.supervisor.send_signal(signal.SIGHUP)
        exit_code = shards.supervisor.wait()

        assert 0 == exit_code
        assert "shard 1 has ended\n" in shards.log
