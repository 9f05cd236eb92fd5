"""If any bit of a segment flips, a check finds it, and no wrong body is delivered."""

import pytest
from tests.storage.frames import WALL_NS, frames, read_all

from penstock.storage import DataPath, LogSettings, check_data_path
from penstock.storage.attributes import MessageAttributes, encode_attributes
from penstock.storage.batch import SEGMENT_HEADER_BYTES
from penstock.testing import MemoryFiles

pytestmark = pytest.mark.crash

SEQ = WALL_NS // 1000
SEGMENT = f"data/topics/t/{SEQ:020}.log"
BATCHES = [["one", "two"], ["three"], ["four", "five", "six"]]
BODIES = [body for batch in BATCHES for body in batch]


def closed_log() -> MemoryFiles:
    files = MemoryFiles()
    files.make_folder("data")
    data_path = DataPath.open("data", LogSettings(), files)
    store, _ = data_path.open_topic("t", wall_ns=WALL_NS)
    for batch in BATCHES:
        # One of the batches has attributes.
        attributes = encode_attributes([MessageAttributes(key=b"key")]) if len(batch) == 1 else b""
        store.log.append(frames(*batch), WALL_NS, attributes=attributes)
    data_path.close()
    return files


def flip(files: MemoryFiles, bit: int) -> None:
    file = files.open(SEGMENT, "write")
    file.write(bytes([file.read(bit // 8, 1)[0] ^ 1 << bit % 8]), bit // 8)


def delivered(files: MemoryFiles) -> tuple[list[str], int]:
    """The bodies that a new process delivers, and the number of damaged places that it reports."""
    files.crash()
    data_path = DataPath.open("data", LogSettings(), files)
    store, findings = data_path.open_topic("t", wall_ns=WALL_NS)
    bodies = read_all(store.log)
    damage = [finding for finding in [*findings, *store.log.damage] if finding.is_damage]
    return bodies, len(damage)


def without_batch(lost: int) -> list[str]:
    return [body for at, batch in enumerate(BATCHES) if at != lost for body in batch]


SIZE = closed_log().open(SEGMENT, "read").size()


@pytest.mark.usefixtures("damaged_on_purpose")
@pytest.mark.parametrize("byte", range(SEGMENT_HEADER_BYTES, SIZE))
def test_a_flipped_bit_is_found_and_costs_only_its_batch(byte: int) -> None:
    for bit in range(8 * byte, 8 * byte + 8):
        files = closed_log()
        flip(files, bit)

        assert [True] == [found.is_damage for found in check_data_path("data", files)]

        # Recovery does not read a cleanly closed segment. The reader skips the damaged batch.
        bodies, damage = delivered(files)
        assert bodies in [without_batch(lost) for lost in range(len(BATCHES))]
        assert 1 == damage

        # Without the index file, recovery reads the segment and removes the damaged batch.
        files.crash()
        files.remove(SEGMENT.replace(".log", ".index"))
        assert (bodies, 1) == delivered(files)
        assert (bodies, 0) == delivered(files)
        files.crash()
        assert not any(found.is_damage for found in check_data_path("data", files))


@pytest.mark.usefixtures("damaged_on_purpose")
@pytest.mark.parametrize("byte", range(SEGMENT_HEADER_BYTES))
def test_a_flipped_bit_in_the_header_of_a_segment_costs_no_message(byte: int) -> None:
    for bit in range(8 * byte, 8 * byte + 8):
        files = closed_log()
        flip(files, bit)

        assert [True] == [found.is_damage for found in check_data_path("data", files)]
        assert (BODIES, 1) == delivered(files)
        assert (BODIES, 0) == delivered(files)
        files.crash()
        assert not any(found.is_damage for found in check_data_path("data", files))
