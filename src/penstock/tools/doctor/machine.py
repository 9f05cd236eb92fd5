"""What the system lets a process have: files, memory, cores, and the right time."""

import ctypes
import os
import resource
import time
from datetime import UTC, datetime
from pathlib import Path

from penstock.tools.doctor.diagnosis import Diagnosis, fail, ok, warn

__all__ = [
    "clock",
    "cores",
    "judge_clock",
    "judge_memory",
    "judge_open_files",
    "memory",
    "open_files",
]

# Beside connections: logs, cursors, listeners, and what Python has open.
FILES_OF_OUR_OWN = 320
CONNECTIONS_GOOD = 4096
MEMORY_GOOD_BYTES = 512 << 20
RELEASED = datetime(2025, 1, 1, tzinfo=UTC)

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_TIMEX_BYTES = 512  # more than the system's struct timex takes
_TIME_ERROR = 5


def open_files() -> Diagnosis:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_open_files(hard)


def judge_open_files(hard: int) -> Diagnosis:
    """nsqd takes what the hard limit allows."""
    if hard == resource.RLIM_INFINITY:
        return ok("no limit")
    connections = max(hard - FILES_OF_OUR_OWN, 0)
    found = f"{hard:,}: enough for {connections:,} connections"
    hint = "raise the limit: ulimit -Hn 65536, or LimitNOFILE=65536 in the systemd unit"
    if not connections:
        return fail(found, hint)
    return warn(found, hint) if connections < CONNECTIONS_GOOD else ok(found)


def memory() -> Diagnosis:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    figures = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return judge_memory(figures["MemAvailable"], figures["MemTotal"], _maybe_cgroup_limit())


def judge_memory(available: int, total: int, limit: int | None) -> Diagnosis:
    found = f"{available >> 20:,} MiB available of {total >> 20:,} MiB"
    if limit is not None and limit < total:
        found += f", limited to {limit >> 20:,} MiB"
        available = min(available, limit)
    if available < MEMORY_GOOD_BYTES:
        return warn(found, "each channel may hold --mem-queue-size messages in memory: lower that")
    return ok(found)


def cores() -> Diagnosis:
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    hint = "" if count > 1 else "one core does it; fsyncs and Spark are glad of another"
    return ok(str(count), hint)


def clock() -> Diagnosis:
    now = datetime.fromtimestamp(time.time(), UTC)
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # Linux: which NTP client, is the same
    if adjtimex is None:
        raise OSError("this system does not tell whether its clock is synchronised")
    state = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return judge_clock(now, is_synchronised=state != _TIME_ERROR)


def judge_clock(now: datetime, *, is_synchronised: bool) -> Diagnosis:
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < RELEASED:
        return fail(found, "set the clock: times and numbers of messages come from it")
    if not is_synchronised:
        return warn(f"{found}, not synchronised", "run an NTP client, such as chrony")
    return ok(f"{found}, synchronised")


def _maybe_cgroup_limit() -> int | None:
    try:
        text = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
