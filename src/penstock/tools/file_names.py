"""What the files of nsq_to_file are called. Pure, but for the time zone.

A name is made in two steps: `FileNames.at` gives the name for a time, which may still contain
`<REV>`; `revision` fills that in, when it is known which numbers are taken.
"""

import os.path
import re
import time

from penstock.common.errors import ConfigError
from penstock.tools.file_options import FileOptions, needs_revisions

__all__ = ["FileNames", "revision"]

# What NSQ's tool knows; all else stays as it is written.
_STRFTIME = re.compile(r"%([aAbBdHImMpSyYzZ%])")


class FileNames:
    """The names of a topic's files, relative to the folder they are in."""

    def __init__(self, options: FileOptions, topic: str, *, hostname: str, pid: int) -> None:
        """Raises ConfigError if the files would not be in their folder."""
        self._datetime_format = options.datetime_format
        self._format = (
            options.filename_format.replace("<TOPIC>", topic)
            .replace("<HOST>", _host(options.host_identifier, hostname))
            .replace("<PID>", str(pid))
            .lstrip("/")
        )
        if not needs_revisions(options):
            self._format = self._format.replace("<REV>", "")
        if options.gzip and not self._format.endswith(".gz"):
            self._format += ".gz"
        # A topic may be called `..`, and nsqlookupd may tell us of any.
        if os.path.normpath(self._format).split("/")[0] in ("", ".", ".."):
            raise ConfigError(f"topic {topic}: its files would not be in the output folder")

    def at(self, wall_seconds: float) -> str:
        """The name that a message gets into at this time."""
        return self._format.replace("<DATETIME>", _strftime(self._datetime_format, wall_seconds))


def revision(name: str, number: int) -> str:
    """The name with its number in it."""
    return name.replace("<REV>", f"-{number:06d}")


def _host(identifier: str, hostname: str) -> str:
    short = hostname.split(".", maxsplit=1)[0]
    if not identifier:
        return short
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)


def _strftime(format: str, wall_seconds: float) -> str:
    local = time.localtime(wall_seconds)
    return _STRFTIME.sub(lambda found: time.strftime(found[0], local), format)
