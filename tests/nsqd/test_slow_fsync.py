"""A disk whose fsync takes long, against the running program with `--sync-every=1`."""

from pathlib import Path
from threading import Thread

from tests.nsqd.patched_nsqd import run_patched_nsqd

from penstock.wire import commands
from penstock.wire.frames import OK

# More than the kernel's buffers of a connection can hold.
COUNT = 60
PUBLISH = commands.pub("t", bytes(1_000_000))


def test_a_producer_is_not_read_while_its_publishes_wait_for_the_disk(tmp_path: Path) -> None:
    """It can fill the kernel's buffers. nsqd reads the rest when it has answered."""
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
