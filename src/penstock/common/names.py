"""The rule for topic and channel names, and how a name becomes a file name.

A name is 1 to 64 bytes of `.a-zA-Z0-9_-`, optionally ended by `#ephemeral`, the suffix counted in
the 64. Names differ in case, and `.` and `..` are legal names, so a name is never used as a file
name as it is: see `file_name`.
"""

import re
from functools import lru_cache

__all__ = [
    "EPHEMERAL_SUFFIX",
    "NAME_BYTES_MAX",
    "file_name",
    "is_ephemeral",
    "is_valid",
    "maybe_name",
    "name_of_file",
]

EPHEMERAL_SUFFIX = "#ephemeral"

NAME_BYTES_MAX = 64

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_FILE_NAME = re.compile(r"(%2e)?(\+[a-z]|[.a-z0-9_-])*", re.ASCII)


def is_valid(name: str) -> bool:
    """Whether `name` may name a topic or a channel."""
    return 0 < len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether what bears this name lives in memory only and goes with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)


# A connection names the same few topics over and over; the bound keeps a hostile peer's memory out.
@lru_cache(maxsize=4096)
def maybe_name(raw: bytes) -> str | None:
    """The name that these bytes of a command spell, or None if it is not a valid one."""
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        return None
    return name if is_valid(name) else None


def file_name(name: str) -> str:
    """A file name for `name`: distinct for distinct names also where the file system folds case,
    and never `.` or `..` or hidden. `Orders.v1` becomes `+orders.v1`, `..` becomes `%2e.`."""
    escaped = re.sub("[A-Z]", lambda match: "+" + match[0].lower(), name)
    return "%2e" + escaped[1:] if escaped.startswith(".") else escaped


def name_of_file(file: str) -> str | None:
    """The name whose `file_name` is `file`, or None if no valid name has it."""
    if not _FILE_NAME.fullmatch(file):
        return None
    dotted = "." + file[3:] if file.startswith("%2e") else file
    name = re.sub(r"\+([a-z])", lambda match: match[1].upper(), dotted)
    return name if is_valid(name) and file_name(name) == file else None
