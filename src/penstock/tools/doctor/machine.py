"""Checks of the installed software, of limits, memory, cores and clock, and of the ports."""

import ctypes
import errno
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from penstock.admin_api.models import InfoResponse
from penstock.common.addresses import join_address
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.blocking import BlockingHttpClient
from penstock.tools.doctor.diagnosis import Diagnosis, fail, ok, warn

__all__ = [
    "checksums",
    "clock",
    "cores",
    "java",
    "judge_clock",
    "judge_java",
    "judge_memory",
    "judge_open_files",
    "judge_spark",
    "memory",
    "open_files",
    "package",
    "port",
    "python",
    "spark",
]

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
JAVA_SECONDS = 20.0

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL_SPARK = "pip install 'penstock[spark]'"


def python() -> Diagnosis:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        return fail(found, "install Python 3.11 or later")
    return ok(found)


def package(name: str) -> Diagnosis:
    """Check a package that Penstock requires."""
    version = _maybe_version(name)
    return ok(version) if version else fail("not installed", f"pip install {name}")


def checksums() -> Diagnosis:
    """Check for the compiled part; without it, checksums are computed in Python."""
    version = _maybe_version("google-crc32c")
    if version is None:
        return package("google-crc32c")
    import google_crc32c  # noqa: PLC0415 (only this check needs it)

    if google_crc32c.implementation != "c":
        return warn(f"{version}, without its C extension", "install a wheel for this platform")
    return ok(version)


def spark() -> Diagnosis:
    versions = {name: _maybe_version(name) for name in ("pyspark", "pyarrow", "pandas", "numpy")}
    return judge_spark(versions, _required_spark_version())


def judge_spark(versions: dict[str, str | None], wanted: str) -> Diagnosis:
    """Check pyspark and the packages that it needs. `wanted` is the supported version of pyspark,
    such as 4.3."""
    pyspark = versions["pyspark"]
    if pyspark is None:
        return ok("not installed", f"only for Spark: {_INSTALL_SPARK}")
    if not f"{pyspark}.".startswith(f"{wanted}."):
        return warn(f"pyspark {pyspark}, not {wanted}", _INSTALL_SPARK)
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return warn(f"pyspark {pyspark} without {', '.join(missing)}", _INSTALL_SPARK)
    if int((versions["pandas"] or "").partition(".")[0]) >= 3:
        return warn(f"pyspark {pyspark} with pandas {versions['pandas']}", "pip install 'pandas<3'")
    return ok(f"pyspark {pyspark}")


def java() -> Diagnosis:
    if _maybe_version("pyspark") is None:
        return ok("not checked", "only Spark needs it")
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    if program is None:
        return judge_java(None, "no java on the PATH")
    try:
        output = subprocess.run(  # noqa: S603 (the program that Spark starts)
            [program, "-version"], capture_output=True, timeout=JAVA_SECONDS, check=False
        ).stderr.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return judge_java(None, f"{program} does not run")
    match = _JAVA_VERSION.search(output)
    return judge_java(int(match[1]) if match else None, program)


def judge_java(major: int | None, where: str) -> Diagnosis:
    hint = f"Spark needs Java {JAVA_MIN} or later: install one, or set JAVA_HOME"
    if major is None:
        return warn(where, hint)
    found = f"{major}, {where}"
    return ok(found) if major >= JAVA_MIN else warn(found, hint)


def _required_spark_version() -> str:
    """The version of pyspark that Penstock's metadata requires."""
    for requirement in metadata.requires("penstock") or ():
        if match := re.match(r"pyspark==([\d.]+)\.\*", requirement):
            return match[1]
    return ""


def _maybe_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# Files besides connections: logs, cursors, listeners, and Python's own.
INTERNAL_FILES = 320
CONNECTIONS_GOOD = 4096
MEMORY_GOOD_BYTES = 512 << 20
RELEASED = datetime(2025, 1, 1, tzinfo=UTC)

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_TIMEX_BYTES = 512  # at least the size of struct timex
_TIME_ERROR = 5


def open_files() -> Diagnosis:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_open_files(hard)


def judge_open_files(hard: int) -> Diagnosis:
    """nsqd raises its soft limit to the hard limit."""
    if hard == resource.RLIM_INFINITY:
        return ok("no limit")
    connections = max(hard - INTERNAL_FILES, 0)
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
        return warn(
            found, "lower --mem-queue-size: each channel holds up to that many messages in memory"
        )
    return ok(found)


def cores() -> Diagnosis:
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    hint = "" if count > 1 else "one core suffices; fsync and Spark benefit from a second"
    return ok(str(count), hint)


def clock() -> Diagnosis:
    now = datetime.fromtimestamp(time.time(), UTC)
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # Linux; works with any NTP client
    if adjtimex is None:
        raise OSError("this system does not report whether its clock is synchronised")
    state = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return judge_clock(now, is_synchronised=state != _TIME_ERROR)


def judge_clock(now: datetime, *, is_synchronised: bool) -> Diagnosis:
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < RELEASED:
        return fail(found, "set the clock: timestamps and sequence numbers depend on it")
    if not is_synchronised:
        return warn(f"{found}, not synchronised", "run an NTP client, such as chrony")
    return ok(f"{found}, synchronised")


def _maybe_cgroup_limit() -> int | None:
    try:
        text = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if text == "max" else int(text)


ASK_SECONDS = 0.5

_LISTENING = "0A"


def port(host: str, number: int, daemon: str) -> Diagnosis:
    """Check whether `daemon` can listen on a port, or already does."""
    try:
        with closing(socket.create_server((host, number))):
            return ok(f"{number} is free")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return fail(f"cannot listen on {number}: {error.strerror}", "try another --host")
    found = f"{number} is used by {_owner(number)}"
    version = _maybe_daemon_version(host, number)
    if version is not None:
        return ok(f"{found}, version {version}")
    if daemon in found:
        return ok(found)
    return warn(found, f"stop that process, or use another port for {daemon}")


def _maybe_daemon_version(host: str, number: int) -> str | None:
    """Version of the nsqd or nsqlookupd on this port; None if neither responds."""
    http = BlockingHttpClient(
        connect_timeout_seconds=ASK_SECONDS, request_timeout_seconds=ASK_SECONDS
    )
    try:
        info = http.get_json(f"http://{join_address(host, number)}/info", InfoResponse)
    except HttpRequestError:
        return None
    return info.version or None


def _owner(number: int) -> str:
    """The process that listens on the port, if visible."""
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
    with suppress(OSError):  # the process has exited, or belongs to another user
        for descriptor in os.listdir(process / "fd"):
            with suppress(OSError):  # closed meanwhile
                links.add(os.readlink(process / "fd" / descriptor))
    return links


def _command(process: Path) -> str:
    """The program; for Python, the module or script."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "a process"
    if Path(words[0]).name.startswith("python"):
        words = [word for word in words[1:] if word and word not in {"-m", "-u"}] or words
    return Path(words[0]).name
