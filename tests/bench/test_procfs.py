import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench import procfs

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


@contextmanager
def python(program: str) -> Iterator[int]:
    """A process that runs the program, prints a line, and waits until it is stopped."""
    program += "print('ran', flush=True)\ninput()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == b"ran\n"
        yield process.pid
        process.stdin.write(b"\n")


def test_cpu_seconds_count_the_work_of_the_process() -> None:
    with python(BURN) as pid:
        assert 0.25 <= procfs.cpu_seconds(pid)


def test_cpu_seconds_include_running_and_exited_children() -> None:
    dead = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
    with python(dead) as pid:
        assert procfs.cpu_seconds(pid) >= 0.25

    alive = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {BURN + 'print(flush=True); input()'!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
    )
    with python(alive) as pid:
        assert procfs.cpu_seconds(pid) >= 0.25


def test_the_peak_includes_freed_memory() -> None:
    with python("held = bytearray(50_000_000)\ndel held\n") as pid:
        assert procfs.peak_rss_bytes(pid) >= procfs.rss_bytes(pid) + 40_000_000


def test_the_memory_of_python_is_plausible() -> None:
    with python("") as pid:
        assert 5_000_000 < procfs.rss_bytes(pid) <= procfs.peak_rss_bytes(pid)
