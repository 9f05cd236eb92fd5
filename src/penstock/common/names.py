"""Validation of topic and channel names, and their conversion to file names.

A name is 1 to 64 bytes of `.a-zA-Z0-9_-`, with an optional suffix `#ephemeral` that counts towards
the 64. Names are case-sensitive, and `.` and `..` are valid. File names are therefore encoded: see
`file_name`.
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
    """Whether this is a valid name of a topic or a channel."""
    return 0 < len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether a topic or channel of this name is kept in memory only and deleted when unused."""
    return name.endswith(EPHEMERAL_SUFFIX)


# Cached, since connections repeat the same few names; the limit bounds the memory.
@lru_cache(maxsize=4096)
def maybe_name(raw: bytes) -> str | None:
    """Decode a name from a command; None if it is invalid."""
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        return None
    return name if is_valid(name) else None


def file_name(name: str) -> str:
    """The file name for a name: unique also on case-insensitive file systems, and never `.`, `..`
    or hidden. `Orders.v1` becomes `+orders.v1`, `..` becomes `%2e.`."""
    escaped = re.sub("[A-Z]", lambda match: "+" + match[0].lower(), name)
    return "%2e" + escaped[1:] if escaped.startswith(".") else escaped


def name_of_file(file: str) -> str | None:
    """The inverse of `file_name`; None if no valid name has this file name."""
    if not _FILE_NAME.fullmatch(file):
        return None
    dotted = "." + file[3:] if file.startswith("%2e") else file
    name = re.sub(r"\+([a-z])", lambda match: match[1].upper(), dotted)
    return name if is_valid(name) and file_name(name) == file else None
