"""CPU time and memory of a process and its children, read from /proc.

The kernel counts CPU in clock ticks (usually 10 ms), so a measurement should take a second or more.
Children are included, even exited ones, because a server may use several processes.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["cpu_seconds", "peak_rss_bytes", "rss_bytes", "starved_seconds"]

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, its children, and the children it has waited for."""
    return sum(_ticks(one) for one in _family(pid)) / TICKS_PER_SECOND


def rss_bytes(pid: int) -> int:
    """Resident memory now."""
    return sum(_status_bytes(one, "VmRSS") for one in _family(pid))


def peak_rss_bytes(pid: int) -> int:
    """Peak resident memory; for several processes an upper bound, as their peaks may
    not coincide.
    """
    return sum(_status_bytes(one, "VmHWM") for one in _family(pid))


def starved_seconds(pid: int) -> float:
    """Time that the process was runnable and waited for a CPU core."""
    return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread ended meanwhile
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _ticks(pid: int) -> int:
    # The second field is the program's name in brackets, which may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    utime, stime, children_utime, children_stime = fields[11:15]
    return int(utime) + int(stime) + int(children_utime) + int(children_stime)


def _status_bytes(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has exited has no memory lines left
