"""Are the ports free that the daemons listen on, and if not, who has them?"""

import errno
import json
import os
import socket
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from penstock.tools.doctor.diagnosis import Diagnosis, fail, ok, warn

__all__ = ["port"]

ASK_SECONDS = 0.5

_LISTENING = "0A"


def port(host: str, number: int, daemon: str) -> Diagnosis:
    """Whether `daemon` can listen here, or already does."""
    try:
        with closing(socket.create_server((host, number))):
            return ok(f"{number} is free")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return fail(f"{number} cannot be listened on: {error.strerror}", "try another --host")
    found = f"{number} is taken by {_owner(number)}"
    version = _maybe_version(host, number)
    if version is not None:
        return ok(f"{found}, version {version}")
    if daemon in found:
        return ok(found)
    return warn(found, f"stop that, or give {daemon} another port")


def _maybe_version(host: str, number: int) -> str | None:
    """Of an nsqd or nsqlookupd that answers here."""
    connection = HTTPConnection(host, number, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/info")
        version = json.loads(connection.getresponse().read(65536))["version"]
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
    return str(version)


def _owner(number: int) -> str:
    """The process that listens, if we may know."""
    inodes = [inode for table in ("tcp", "tcp6") for inode in _listening_inodes(table, number)]
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        if not _open_files(process).isdisjoint(sockets):
            return f"{_command(process)} (process {process.name})"
    return "a process of another user"


def _listening_inodes(table: str, number: int) -> list[str]:
    try:
        lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    ending = f":{number:04X}"
    return [row[9] for row in rows if row[1].endswith(ending) and row[3] == _LISTENING]


def _open_files(process: Path) -> set[str]:
    links = set()
    with suppress(OSError):  # it is gone, or not ours to look at
        for descriptor in os.listdir(process / "fd"):
            with suppress(OSError):  # closed since
                links.add(os.readlink(process / "fd" / descriptor))
    return links


def _command(process: Path) -> str:
    """The program, or of a Python program its module or script."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    if Path(words[0]).name.startswith("python"):
        words = [word for word in words[1:] if word and word not in {"-m", "-u"}] or words
    return Path(words[0]).name
