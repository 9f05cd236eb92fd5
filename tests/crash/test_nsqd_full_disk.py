"""nsqd on a full disk refuses publishes, reports it, and recovers without a restart.

The disk is real; a resource limit of the kernel keeps nsqd's files from growing.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.crash.leader import LeaderProcess, RunNsqd

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import WireError
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.crash


@contextmanager
def full_disk(nsqd: NsqdProcess) -> Iterator[None]:
    _, hard = resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("PUB", commands.pub("t", b"x")),
        ("MPUB", commands.mpub("t", [b"x", b"y"])),
        ("DPUB", commands.dpub("t", 10, b"x")),
        ("DMPUB", commands.dmpub("t", 10, [b"x", b"y"])),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--sync-every=1",)], ids=["written", "synced"])
def test_publish_is_refused_and_nothing_is_stored(
    run_nsqd: RunNsqd, word: str, command: bytes, flags: tuple[str, ...]
) -> None:
    with run_nsqd(*flags) as nsqd:
        nsqd.publish("t", b"before")
        with full_disk(nsqd):
            client = nsqd.connect()
            with pytest.raises(WireError, match=f"^E_{word}_FAILED {word} failed "):
                client.call(command)

            assert b"" == client.read_to_end()
            assert 1 == nsqd.stats("t")["depth"]


def test_http_and_ping_report_a_full_disk_until_writes_succeed(run_nsqd: RunNsqd) -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("t", b"before")
        with full_disk(nsqd):
            assert (503, {"message": "EXITING"}) == answer(nsqd, "/pub?topic=t", b"x")
            assert (503, {"message": "EXITING"}) == answer(nsqd, "/mpub?topic=t", b"x\ny")
            status, body = nsqd.http("GET", "/ping")
            assert 500 == status
            assert body.startswith(b"NOK - ")
            assert nsqd.http("GET", "/stats?format=json").json()["health"].startswith("NOK - ")

        nsqd.post("/pub?topic=t", b"after")

        assert (200, b"OK") == nsqd.http("GET", "/ping")
        received = nsqd.consumer("t", "c", rdy=5).messages(2)
        assert [b"before", b"after"] == [message.body for message in received]


def answer(nsqd: NsqdProcess, target: str, body: bytes) -> tuple[int, object]:
    reply = nsqd.http("POST", target, body)
    return reply.status, reply.json()


def test_failed_writes_leave_no_files(run_nsqd: RunNsqd) -> None:
    with run_nsqd() as nsqd:
        nsqd.publish("t", b"before")
        member_files = ["penstock.member"] if isinstance(nsqd, LeaderProcess) else []
        with full_disk(nsqd):
            nsqd.http("POST", "/channel/create?topic=t&channel=c")
            nsqd.http("POST", "/topic/pause?topic=t")

            # nsqd tries to write nsqd.dat again and again, and removes the new file each time.
            expected = ["nsqd.dat", "penstock.format", *member_files, "topics"]
            wait_until(
                lambda: expected == sorted(path.name for path in nsqd.data_path.iterdir()),
                "no other files",
            )


@pytest.mark.on_leader
def test_consumers_are_served_on_a_full_disk_and_their_fins_are_saved_later(
    run_nsqd: RunNsqd,
) -> None:
    with run_nsqd() as nsqd:
        client = nsqd.consumer("t", "c")
        nsqd.publish("t", *(b"%d" % number for number in range(100)))
        with full_disk(nsqd):
            for number in range(100):
                message = client.message()
                assert b"%d" % number == message.body
                client.send(commands.fin(message.id))
            wait_until(lambda: nsqd.shows("t", "c", depth=0, in_flight_count=0), "all FINs")
            time.sleep(0.2)  # longer than the interval of nsqd's attempts to save them
        nsqd.restart()

        assert nsqd.shows("t", "c", depth=0, in_flight_count=0)
