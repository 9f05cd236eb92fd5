"""nsqd on a disk with a slow fsync."""

from pathlib import Path
from threading import Thread

import pytest
from tests.nsqd.patched_nsqd import run_patched_nsqd

from penstock.protocol import commands
from penstock.protocol.frames import OK
from penstock.testing.waiting import wait_until

# More than the kernel's buffers of a connection.
COUNT = 60
PUBLISH = commands.pub("t", bytes(1_000_000))


def test_a_producer_is_not_read_while_its_publishes_wait_for_the_disk(tmp_path: Path) -> None:
    """With `--sync-every=1`. The producer can fill the kernel's buffers; nsqd reads the rest after
    it has responded.
    """
    is_held = tmp_path / "fsync-is-held"
    data_path = tmp_path / "data"
    data_path.mkdir()
    with run_patched_nsqd(f"hold-fsync={is_held}", "--sync-every=1", data_path=data_path) as nsqd:
        nsqd.publish("t", b"first")
        is_held.touch()
        producer = nsqd.connect(timeout_seconds=60)
        unsent = memoryview(PUBLISH * COUNT)
        while sent := producer.send_some(unsent, seconds=1):
            unsent = unsent[sent:]

        assert unsent
        assert b"OK" == nsqd.http("GET", "/ping").body
        is_held.unlink()
        rest = Thread(target=producer.send_beneath, args=(bytes(unsent),))
        rest.start()
        assert OK * COUNT == producer.read(len(OK) * COUNT, seconds=60)
        rest.join()


@pytest.mark.parametrize("change", ["delete", "empty"])
def test_a_change_of_a_channel_is_answered_once_it_survives_a_power_loss(
    tmp_path: Path, change: str
) -> None:
    """Other clients are served while it waits for the disk."""
    is_held = tmp_path / "fsync-is-held"
    data_path = tmp_path / "data"
    data_path.mkdir()
    with run_patched_nsqd(f"hold-fsync={is_held}", data_path=data_path) as nsqd:
        nsqd.publish("t", b"first")
        nsqd.post("/channel/create?topic=t&channel=c")
        is_held.touch()
        request = Thread(target=nsqd.post, args=(f"/channel/{change}?topic=t&channel=c",))
        request.start()

        def is_changed() -> bool:
            channels = nsqd.stats("t")["channels"]
            return not channels or channels[0]["depth"] == 0

        wait_until(is_changed, "the change")
        assert request.is_alive()
        is_held.unlink()
        request.join()
