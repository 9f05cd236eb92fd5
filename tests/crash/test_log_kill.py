"""After kill -9 of a process that writes a log to a real disk, all reported messages are stored."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.seeds import fresh_random
from tests.storage.frames import read_all

from penstock.storage import DataPath, LogSettings, check_data_path

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

KILLS = 12

# Appends batches until it is killed, and reports after each one how many messages are stored.
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


def test_reported_messages_are_stored_after_a_kill(tmp_path: Path) -> None:
    random = fresh_random("test_reported_messages_are_stored_after_a_kill")
    reported = stored = 0
    for _ in range(KILLS):
        reported, next_seq = write_until_killed(
            tmp_path, stored, after_lines=random.randrange(1, 300)
        )
        data_path = DataPath.open(str(tmp_path), LogSettings(max_bytes_per_file=50_000))
        store, findings = data_path.open_topic("t", wall_ns=0)
        bodies = read_all(store.log)

        assert not any(finding.is_damage for finding in findings)
        # The last batch may be stored although the process was killed before it reported it.
        assert len(bodies) in (reported, reported + 7)
        assert [str(number) * 20 for number in range(len(bodies))] == bodies
        progress = store.cursors.progress["c"]
        assert next_seq - 3 <= progress.floor < store.log.next_seq
        stored = len(bodies)
        data_path.close()
        assert [] == check_data_path(tmp_path)


def write_until_killed(path: Path, number: int, *, after_lines: int) -> tuple[int, int]:
    """The last report of the writer: number of stored messages, and next sequence number."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(number)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(after_lines)]
        writer.kill()
        lines += writer.stdout.readlines()
    # The last line may be incomplete.
    *_, last = [line for line in lines if line.endswith("\n")]
    reported, next_seq = map(int, last.split())
    return reported, next_seq
