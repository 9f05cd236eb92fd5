"""Any bytes in place of a log's files: a segment, its index, the journal, the marker.

The first byte selects the file. For all other bytes, nsqd opens the data path or raises a
StorageError, the check reports damage or raises a StorageError, and no message is invented. A
journal record with a valid checksum that is parsed and rendered again is the same.
"""

from google_crc32c import value as crc32c

from fuzz.targets.log_recovery import FIRST_SEQ, FOLDER, WALL_NS, open_topic
from penstock.common.errors import Error
from penstock.storage import RetryState, check_data_path
from penstock.storage.cursor_journal import (
    ClearPausePoint,
    FinishRanges,
    JournalChange,
    JournalRecord,
    RemoveCursor,
    ReserveSeqs,
    SetCursor,
    SetPausePoint,
    SetRetryStates,
    encode_record,
    scan_journal,
)
from penstock.storage.layout import cursors_name, index_name, segment_name
from penstock.testing.files import MemoryFiles

__all__ = ["SEEDS", "check"]

SEGMENT, INDEX, JOURNAL, MARKER, RECORD = range(5)

PATHS = {
    SEGMENT: f"{FOLDER}/{segment_name(FIRST_SEQ)}",
    INDEX: f"{FOLDER}/{index_name(FIRST_SEQ)}",
    JOURNAL: f"{FOLDER}/{cursors_name(1)}",
    RECORD: f"{FOLDER}/{cursors_name(1)}",
    MARKER: "data/penstock.format",
}
BODIES = [b"one", b"two", b"three"]

# Where in a record its checksum and the bytes that it covers begin, and where its changes do.
CHECKSUM_AT, CHECKED_AT = 4, 8
CHANGES_AT = len(encode_record([]))

CHANGES: list[JournalChange] = [
    ReserveSeqs(FIRST_SEQ),
    SetCursor("c", FIRST_SEQ),
    FinishRanges("c", [(FIRST_SEQ + 1, FIRST_SEQ + 2)]),
    SetRetryStates("c", [(FIRST_SEQ + 2, RetryState(2, WALL_NS))]),
    SetPausePoint(FIRST_SEQ),
    ClearPausePoint(),
    RemoveCursor("c"),
]


def closed_log() -> MemoryFiles:
    """A data path with three messages, the first of them finished, and all its files."""
    files = MemoryFiles()
    files.make_folder("data")
    data_path, store, _ = open_topic(files)
    for body in BODIES:
        store.log.append([len(body).to_bytes(4) + body], WALL_NS)
    store.cursors.create("c", FIRST_SEQ + 1)
    data_path.close()
    return files


def stored(files: MemoryFiles, path: str) -> bytes:
    file = files.open(path, "read")
    return file.read(0, file.size())


SEEDS = [
    *(bytes([kind]) + stored(closed_log(), PATHS[kind]) for kind in range(4)),
    *(bytes([RECORD]) + encode_record([change])[CHANGES_AT:] for change in CHANGES),
    bytes([JOURNAL]) + encode_record(CHANGES) * 2,
]


def check(data: bytes) -> None:
    kind, content = data[0] % 5 if data else SEGMENT, data[1:]
    if kind == RECORD:
        content = vouched_for(content)
        check_record(content)
    files = closed_log()
    file = files.open(PATHS[kind], "write")
    file.truncate(0)
    file.write(content, 0)
    for _ in range(2):
        files.crash()
        try:
            check_data_path("data", files)
            found = read_back(files)
        except Error:
            continue
        assert found <= set(BODIES)
        # Only a segment holds messages: without the others, all are there.
        assert kind == SEGMENT or found == set(BODIES), found


def read_back(files: MemoryFiles) -> set[bytes]:
    data_path, store, _ = open_topic(files)
    found: set[bytes] = set()
    seq = 0
    while runs := store.log.read(seq):
        found |= {frame[4:] for run in runs for frame in run.frames}
        seq = runs[-1].next_seq
    data_path.close()
    return found


def vouched_for(changes: bytes) -> bytes:
    """A record whose checksum is right, whatever it holds."""
    shell = encode_record([ReserveSeqs(0)])  # only for the layout of what stands before the changes
    checked = shell[CHECKED_AT : CHECKED_AT + 4] + len(changes).to_bytes(4) + changes
    checksum: int = crc32c(checked)
    return shell[:CHECKSUM_AT] + checksum.to_bytes(4) + checked


def check_record(record: bytes) -> None:
    for found in scan_journal(record):
        if isinstance(found, JournalRecord):
            (again,) = scan_journal(encode_record(found.changes))
            assert isinstance(again, JournalRecord)
            assert found.changes == again.changes
