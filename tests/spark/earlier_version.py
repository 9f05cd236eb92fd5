"""Data that the last version without log ids has written: `data/before_log_ids/README.md`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.testing.nsqd import NsqdProcess, run_nsqd

__all__ = ["BODIES", "copy_data", "run_nsqds"]

DATA = Path(__file__).parent / "data" / "before_log_ids"

BODIES = [f"{number:03}" for number in (*range(33), *range(100, 118))]


def copy_data(folder: Path) -> Path:
    """Copy the data to a folder that tests may change."""
    copy = shutil.copytree(DATA, folder / "data")
    for file in (copy / "query/table/_spark_metadata").iterdir():
        file.write_text(file.read_text().replace("FOLDER", str(copy / "query")))
    return copy


@contextmanager
def run_nsqds(data: Path) -> Iterator[list[NsqdProcess]]:
    """Run the two nsqds on their data paths."""
    flags = ("--retention-time=876000h",)
    with (
        run_nsqd("--node-id=1", *flags, data_path=data / "nsqd-1") as one,
        run_nsqd("--node-id=2", *flags, data_path=data / "nsqd-2") as two,
    ):
        yield [one, two]
