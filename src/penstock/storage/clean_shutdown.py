"""The file that makes a folder a data path: which format it has, and how the last run ended.

It is text, so that a person can read it:

    penstock data path
    format 1
    boot 7e340d32-169b-42a8-8e62-ea3d15afc667
    closed
    removed below 1794798614919625

`boot` is the boot ID of the machine when the data path was last opened; the next line says
`open` while a process has it open. `open` and another boot than today's: the machine went down with
the data path open, and writes that were not fsynced may be lost without a trace.

`removed below` is a number above every sequence number of the deleted topics. A topic that is
created again starts there or later, so that no number is used twice.
"""

import contextlib
import re
from enum import Enum, auto
from typing import NamedTuple

from penstock.common.errors import DataPathError
from penstock.storage.files import Files, write_all
from penstock.storage.layout import FORMAT_NAME, NEW_SUFFIX

__all__ = ["FORMAT_VERSION", "LastEnd", "Marker", "read_marker", "write_marker"]

FORMAT_VERSION = 1

_TEXT = re.compile(
    r"penstock data path\nformat (\d+)\n"
    r"(?:boot (\S*)\n(open|closed)\n)?(?:removed below (\d+)\n)?.*",
    re.DOTALL,
)
_SIZE_MAX = 4096


class LastEnd(Enum):
    """How the last run that had the data path open came to its end."""

    CLEAN = auto()  # all is synced
    CRASH = auto()  # all that was written is there, but may not be synced
    POWER_LOSS = auto()  # what was not synced may be lost


class Marker(NamedTuple):
    """What the file says besides the format, which is ours."""

    boot_id: str
    is_open: bool
    removed_below: int = 0

    def last_end(self, boot_id: str) -> "LastEnd":
        """How the last run ended, `boot_id` being today's."""
        if not self.is_open:
            return LastEnd.CLEAN
        return LastEnd.CRASH if self.boot_id == boot_id else LastEnd.POWER_LOSS


def read_marker(files: Files, folder: str) -> Marker | None:
    """What the marker of a data path says, or None if there is none.

    Raises DataPathError if it is not a marker, or one of a format that we do not know.
    """
    path = f"{folder}/{FORMAT_NAME}"
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            text = file.read(0, _SIZE_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise DataPathError(f"{path} is not a Penstock format marker")
    if int(match[1]) > FORMAT_VERSION:
        raise DataPathError(
            f"data path {folder} has format {match[1]}, written by a newer version; "
            f"this one knows up to {FORMAT_VERSION}"
        )
    return Marker(match[2] or "", match[3] != "closed", int(match[4] or 0))


def write_marker(files: Files, folder: str, marker: Marker) -> None:
    """Replaces the marker, so that at any moment there is a whole one."""
    path = f"{folder}/{FORMAT_NAME}"
    state = "open" if marker.is_open else "closed"
    text = f"penstock data path\nformat {FORMAT_VERSION}\nboot {marker.boot_id}\n{state}\n"
    if marker.removed_below:
        text += f"removed below {marker.removed_below}\n"
    with contextlib.suppress(FileNotFoundError):
        files.remove(path + NEW_SUFFIX)
    with contextlib.closing(files.open(path + NEW_SUFFIX, "create")) as file:
        write_all(file, [text.encode()], 0)
        file.sync()
    files.rename(path + NEW_SUFFIX, path)
    files.sync_folder(folder)
