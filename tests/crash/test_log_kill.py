"""kill -9 of a process that writes a log on the real disk: whatever it said was stored is there."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import read_all

from penstock.storage import DataPath, LogSettings, check_data_path

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

KILLS = 12

# Appends batches until it is killed, and says which messages are stored as soon as they are.
WRITER = """
import sys, time
from penstock.storage import DataPath, LogSettings

data_path = DataPath.open(sys.argv[1], LogSettings(max_bytes_per_file=50_000))
store, _ = data_path.open_topic("t", wall_ns=time.time_ns())
number = int(sys.argv[2])
while True:
    bodies = [str(number + at).encode() * 20 for at in range(7)]
    store.log.append([len(body).to_bytes(4) + body for body in bodies], time.time_ns())
    number += 7
    if "c" not in store.cursors.progress:
        store.cursors.create("c", store.log.first_seq)
    store.cursors.finish("c", store.log.first_seq, store.log.next_seq - 3)
    store.cursors.flush()
    print(number, store.log.next_seq, flush=True)
"""


def test_what_was_said_to_be_stored_is_there(tmp_path: Path) -> None:
    random = fresh_random("test_what_was_said_to_be_stored_is_there")
    said = stored = 0
    for _ in range(KILLS):
        said, next_seq = write_until_killed(tmp_path, stored, after_lines=random.randrange(1, 300))
        data_path = DataPath.open(str(tmp_path), LogSettings(max_bytes_per_file=50_000))
        store, findings = data_path.open_topic("t", wall_ns=0)
        bodies = read_all(store.log)

        assert not any(finding.is_damage for finding in findings)
        # The last batch may be there although there was no time left to say so.
        assert len(bodies) in (said, said + 7)
        assert [str(number) * 20 for number in range(len(bodies))] == bodies
        progress = store.cursors.progress["c"]
        assert next_seq - 3 <= progress.floor < store.log.next_seq
        stored = len(bodies)
        data_path.close()
        assert [] == check_data_path(tmp_path)


def write_until_killed(path: Path, number: int, *, after_lines: int) -> tuple[int, int]:
    """What the writer said last: how many messages are stored, and the next one's number."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(number)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(after_lines)]
        writer.kill()
        lines += writer.stdout.readlines()
    # It may have been killed in the middle of a line.
    *_, last = [line for line in lines if line.endswith("\n")]
    said, next_seq = map(int, last.split())
    return said, next_seq
