"""Start, stop and restart of nsqd."""

import asyncio
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.nsqd.in_process import connected, serving

from penstock.common.clock import MILLISECOND_NS
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdStartError, run_nsqd
from penstock.testing.raw_client import DisconnectedError, RawClient
from penstock.testing.waiting import wait_until

MIB = 1024 * 1024


def failure_to_start(*flags: str, data_path: Path) -> NsqdStartError:
    with pytest.raises(NsqdStartError) as failure, run_nsqd(*flags, data_path=data_path):
        pass
    return failure.value


def last_line(log: str) -> str:
    """The last line of a log, without the time and the prefix."""
    return log.rstrip().rpartition("\n")[2].partition(" FATAL: ")[2]


# Stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda each: each.name
)
def test_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("t", b"x")
        nsqd.terminate(number)

    assert nsqd.log.rstrip().endswith("NSQ: bye")


def test_stop_closes_connections_and_does_not_wait_for_their_clients() -> None:
    with run_nsqd() as nsqd:
        consumer, producer = nsqd.consumer("t", "c"), nsqd.connect()
        producer.call(commands.pub("t", b"x"))
        consumer.message()
        nsqd.send_signal(signal.SIGTERM)

        assert b"" == consumer.read_to_end()
        assert b"" == producer.read_to_end()
        assert 0 == nsqd.wait()


def test_second_signal_forces_the_stop() -> None:
    """A client that does not close its connection delays the first stop."""
    with run_nsqd() as nsqd:
        with RawClient(nsqd.tcp_address) as client:
            client.call(commands.pub("t", b"x"))
            nsqd.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in nsqd.log, "the first signal to be noticed")
            nsqd.send_signal(signal.SIGINT)
            exit_code = nsqd.wait()

        assert 1 == exit_code
        assert "SIGINT again, exiting without a clean stop" == last_line(nsqd.log)


def test_unfinished_messages_are_delivered_after_a_stop() -> None:
    with run_nsqd() as nsqd:
        client = nsqd.consumer("t", "c", rdy=2)
        nsqd.publish("t", b"finished", b"in flight", b"waiting")
        finished, _in_flight = client.messages(2)
        client.send(commands.rdy(0), commands.fin(finished.id))
        client.call(commands.dpub("t", 60_000, b"deferred"))
        nsqd.restart()

        received = nsqd.consumer("t", "c", rdy=10).messages(2)
        assert {(2, b"in flight"), (1, b"waiting")} == {
            (message.attempts, message.body) for message in received
        }
        assert nsqd.shows("t", "c", depth=0, deferred_count=1, in_flight_count=2)


@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["written", "synced"])
def test_stop_under_load_keeps_all_acknowledged_messages(flags: tuple[str, ...]) -> None:
    with run_nsqd(*flags) as nsqd:
        acknowledged = [0, 0]
        producers = [
            threading.Thread(target=publish_until_closed, args=(nsqd.tcp_address, acknowledged, at))
            for at in range(2)
        ]
        for producer in producers:
            producer.start()
        wait_until(lambda: min(acknowledged) > 50, "both to be at work")
        nsqd.send_signal(signal.SIGTERM)
        for producer in producers:
            producer.join()

        assert 0 == nsqd.wait()
        nsqd.start()
        assert nsqd.stats("t")["depth"] >= sum(acknowledged)


def publish_until_closed(address: str, acknowledged: list[int], at: int) -> None:
    with RawClient(address) as client, suppress(DisconnectedError, ConnectionError):
        while True:
            client.call(commands.mpub("t", [b"x", b"y"]))
            acknowledged[at] += 2


def test_messages_of_a_topic_without_channels_survive_a_restart() -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("t", b"1", b"2")
        nsqd.restart()

        assert 2 == nsqd.stats("t")["depth"]
        received = nsqd.consumer("t", "c", rdy=2).messages(2)
        assert [b"1", b"2"] == [message.body for message in received]


@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "kill"])
def test_deferral_is_kept_over_a_restart(*, kill: bool) -> None:
    """A message deferred by DPUB or REQ is delivered when it is due."""
    with run_nsqd("--max-req-timeout=1h", "--msg-timeout=5m") as nsqd:
        client = nsqd.consumer("t", "c", rdy=2)
        nsqd.publish("t", b"requeued", b"requeued for long")
        requeued, for_long = client.messages(2)
        journal = nsqd.data_path / "topics" / "t" / "cursors.1"
        journal_bytes = journal.stat().st_size
        published_at = time.monotonic()
        client.send(commands.req(requeued.id, 3000), commands.req(for_long.id, 3_600_000))
        client.call(commands.dpub("t", 3000, b"published"))
        client.call(commands.dpub("t", 3_600_000, b"published for long"))
        if kill:
            # A REQ is written to the journal a moment later, together with FINs.
            wait_until(lambda: journal.stat().st_size > journal_bytes, "the REQ to be journalled")
            nsqd.kill()
        nsqd.restart()

        client = nsqd.consumer("t", "c", rdy=10)
        received = client.messages(2)
        assert {(2, b"requeued"), (1, b"published")} == {
            (message.attempts, message.body) for message in received
        }
        assert published_at + 3.0 <= time.monotonic()
        assert nsqd.shows("t", "c", in_flight_count=2, deferred_count=2, depth=0)


# Starting -----------------------------------------------------------------------------------------


def test_second_instance_on_a_data_path_is_refused(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as first:
        failure = failure_to_start(data_path=tmp_path)

        assert 1 == failure.exit_code
        expected = (
            "failed to instantiate nsqd - failed to lock data-path: cannot flock directory "
            f"{tmp_path} - Resource temporarily unavailable "
            "(possibly in use by another instance of nsqd)"
        )
        assert expected == last_line(failure.log)
        first.publish("t", b"the first one goes on")


def test_data_path_is_free_again_after_a_kill(tmp_path: Path) -> None:
    with run_nsqd(data_path=tmp_path) as nsqd:
        nsqd.kill()
        nsqd.restart()


@pytest.mark.parametrize("flag", ["--tcp-address", "--http-address"])
def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failure = failure_to_start(f"{flag}={address}", data_path=tmp_path)

    assert 1 == failure.exit_code
    assert f"listen ({address}) failed - address already in use" == last_line(failure.log)
    assert "Traceback" not in failure.log


def test_an_address_without_a_port_is_a_unix_socket_as_in_nsq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with run_nsqd("--tcp-address=4150") as nsqd:
        assert (tmp_path / "4150").is_socket()
        assert -1 == nsqd.http("GET", "/info").json()["tcp_port"]
    assert not (tmp_path / "4150").exists()


@pytest.mark.parametrize("port", ["99999", "abc", "-5", ""])
def test_an_invalid_port_is_reported_in_one_line(tmp_path: Path, port: str) -> None:
    failure = failure_to_start(f"--tcp-address=127.0.0.1:{port}", data_path=tmp_path)

    assert 1 == failure.exit_code
    assert f"listen (127.0.0.1:{port}) failed - {port} is no port" == last_line(failure.log)


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_an_unusable_data_path_is_reported_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    if kind == "a file":
        path.write_bytes(b"")
    failure = failure_to_start(data_path=path)

    assert 1 == failure.exit_code
    assert str(path) in last_line(failure.log)
    assert "Traceback" not in failure.log


def test_nsqd_without_http_serves_tcp() -> None:
    with run_nsqd("--http-address=") as nsqd:
        nsqd.publish("t", b"x")

        assert "HTTP: listening" not in nsqd.log


def test_http_may_be_served_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    with run_nsqd(f"--http-address={path}") as nsqd:
        assert path == nsqd.http_address
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"\r\n\r\nOK")


def test_a_socket_file_left_by_a_kill_is_replaced(tmp_path: Path) -> None:
    with run_nsqd(f"--tcp-address={tmp_path / 'nsqd.sock'}") as nsqd:
        nsqd.kill()
        nsqd.restart()
        nsqd.publish("t", b"x")

    assert not (tmp_path / "nsqd.sock").exists()


# Timers -------------------------------------------------------------------------------------------


class _NotingLoop(asyncio.SelectorEventLoop):
    """Records all timers."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []

    def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers.append(super().call_at(*args, **kwargs))
        return self.timers[-1]

    def to_come(self) -> int:
        return sum(not each.cancelled() and each.when() > self.time() for each in self.timers)


def test_timers_do_not_accumulate_while_a_message_is_in_flight(tmp_path: Path) -> None:
    async def serve(loop: _NotingLoop) -> int:
        async with serving(tmp_path, http_address="", sync_timeout_ns=MILLISECOND_NS) as nsqd:
            assert nsqd.tcp is not None
            subscribe = commands.MAGIC + commands.sub("t", "c") + commands.rdy(1)
            async with connected(nsqd.tcp.address, subscribe) as (reader, writer):
                writer.write(commands.pub("t", b"x"))
                await reader.readuntil(b"x")
                for _ in range(100):
                    await asyncio.sleep(0.001)
                return loop.to_come()

    with asyncio.Runner(loop_factory=_NotingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, _NotingLoop)
        assert runner.run(serve(loop)) < 20
