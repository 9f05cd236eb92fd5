"""nsqd on a real disk (ext4) that fills up, fails or hangs."""

import asyncio
import os
import re
import time

import pytest
from tests.cli.programs import in_pipe
from tests.crash.disks import Disk
from tests.crash.leader import RunNsqd
from tests.crash.steady_load import SteadyLoad, received

from penstock.client import Producer as AsyncProducer
from penstock.client.blocking import Producer
from penstock.common.errors import RefusedError
from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import WireError
from penstock.testing.waiting import wait_until

# Repetitions of each fault with one nsqd; DISK_ROUNDS=50 for a long run.
ROUNDS = int(os.environ.get("DISK_ROUNDS", "2"))

pytestmark = [pytest.mark.crash, pytest.mark.timeout(max(600, 60 * ROUNDS))]

HANG_SECONDS = 0.3

# Larger than a block: a small body would fit into the last block of a file on a full disk.
BODY = b"x" * 20_000


def is_healthy(nsqd: NsqdProcess) -> bool:
    return nsqd.http("GET", "/ping").status == 200


def test_a_full_disk_loses_no_acknowledged_message_and_nsqd_recovers_without_a_restart(
    run_nsqd: RunNsqd,
    disk: Disk,
) -> None:
    with run_nsqd("--max-bytes-per-file=200000", data_path=disk.path) as nsqd:
        with SteadyLoad(nsqd) as load:
            for _ in range(ROUNDS):
                load.await_progress()
                filler = disk.fill()
                load.await_refusal()
                assert not is_healthy(nsqd)
                filler.unlink()
                load.await_progress()
                assert is_healthy(nsqd)
        pid = nsqd.pid

        assert all("E_MPUB_FAILED" in refusal for refusal in load.refusals)
        assert set() == load.acknowledged - received(nsqd, load.acknowledged)
        assert pid == nsqd.pid
        nsqd.restart()
        wait_until(
            lambda: nsqd.shows("t", "c", depth=0, in_flight_count=0), "all messages to be finished"
        )


def test_publishers_get_an_error_at_once_if_the_disk_is_full(run_nsqd: RunNsqd, disk: Disk) -> None:
    async def publish_async(address: str) -> None:
        async with AsyncProducer(address) as producer:
            await producer.publish("t", BODY)

    with run_nsqd(data_path=disk.path) as nsqd:
        nsqd.publish("t", b"before")
        disk.fill()
        with Producer(nsqd.tcp_address) as producer, pytest.raises(RefusedError) as blocking:
            producer.publish("t", BODY)
        with pytest.raises(RefusedError) as on_asyncio:
            asyncio.run(publish_async(nsqd.tcp_address))
        by_command = in_pipe(
            "penstock", "pub", "t", BODY.decode(), f"--nsqd-tcp-address={nsqd.tcp_address}"
        )

        reason = "disk full (No space left on device)"
        assert str(blocking.value).endswith(reason)
        assert str(on_asyncio.value).endswith(reason)
        assert (1, "") == (by_command.returncode, by_command.stdout)
        assert by_command.stderr.endswith(f"{reason}\n")


def test_publishers_use_an_nsqd_whose_disk_is_not_full(run_nsqd: RunNsqd, disk: Disk) -> None:
    async def publish_async(*addresses: str) -> None:
        async with AsyncProducer(addresses) as producer:
            for _ in range(4):
                await producer.publish("t", BODY)

    with run_nsqd(data_path=disk.path) as full, run_nsqd() as other:
        full.publish("t", b"before")
        disk.fill()
        addresses = (full.tcp_address, other.tcp_address)
        with Producer(addresses) as producer:
            for _ in range(4):
                producer.publish("t", BODY)
        asyncio.run(publish_async(*addresses))

        assert 8 == other.stats("t")["depth"]


def test_errors_of_a_full_disk_are_counted_instead_of_logged_one_by_one(
    run_nsqd: RunNsqd, disk: Disk
) -> None:
    attempts = 200
    with run_nsqd(data_path=disk.path) as nsqd:
        nsqd.publish("t", b"before")
        filler = disk.fill()
        for number in range(attempts):
            if number % 2:
                assert 503 == nsqd.http("POST", "/pub?topic=t", BODY).status
            else:
                with pytest.raises(WireError, match="disk full"):
                    nsqd.publish("t", BODY)
        filler.unlink()
        nsqd.terminate()
        lines = [line for line in nsqd.log.splitlines() if "disk full" in line]
        counts = [re.search(r"\((\d+) such errors in 10 s\)$", line) for line in lines]

        assert attempts == sum(int(count[1]) if count else 1 for count in counts)
        assert len(lines) < attempts / 2


@pytest.mark.on_leader
def test_acknowledged_messages_survive_a_file_system_error(run_nsqd: RunNsqd, disk: Disk) -> None:
    """After a disk error, the kernel makes the file system read-only until it is repaired.

    The error is triggered between two publishes: if it occurs during an fsync, ext4 reports success
    for about one fsync in twenty.
    """
    with run_nsqd("--sync-every=1", data_path=disk.path) as nsqd:
        for _ in range(ROUNDS):
            with SteadyLoad(nsqd) as load:
                load.await_progress()
            disk.break_down()
            with pytest.raises(WireError, match="E_PUB_FAILED"):
                nsqd.publish("t", b"x")
            assert not is_healthy(nsqd)
            # Consumers get messages, although their FINs cannot be saved.
            assert b"0" == nsqd.consumer("t", "c").message().body
            nsqd.kill()
            disk.repair()
            nsqd.restart()

            assert set() == load.acknowledged - received(nsqd, load.acknowledged)
            nsqd.post("/topic/empty?topic=t")
            nsqd.post("/channel/empty?topic=t&channel=c")


def test_publishing_works_again_when_the_file_system_is_writable_again(
    run_nsqd: RunNsqd, disk: Disk
) -> None:
    """A file system can be remounted read-only only while no log is open."""
    with run_nsqd(data_path=disk.path) as nsqd:
        disk.set_writable(False)
        with pytest.raises(WireError, match="E_PUB_FAILED"):
            nsqd.publish("t", b"x")
        disk.set_writable(True)
        nsqd.publish("t", b"y")

        assert b"y" == nsqd.consumer("t", "c").message().body
        assert is_healthy(nsqd)


@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["written", "synced"])
def test_a_hanging_disk_delays_publishes_without_errors_or_loss(
    run_nsqd: RunNsqd, disk: Disk, flags: tuple[str, ...]
) -> None:
    with run_nsqd(*flags, data_path=disk.path) as nsqd:
        consumer = nsqd.consumer("other", "c", rdy=10)
        with SteadyLoad(nsqd) as load:
            for _ in range(ROUNDS):
                load.await_progress()
                with disk.hanging():
                    time.sleep(HANG_SECONDS)
        assert b"OK" == nsqd.connect().call(commands.pub("other", b"x"))

        assert [] == load.refusals
        assert set() == load.acknowledged - received(nsqd, load.acknowledged)
        assert 1 == consumer.message().attempts
