"""Celery with nsqd, compared with Celery with Redis: `python -m bench.celery_brokers`.

One process publishes empty tasks one by one; then a worker with two processes executes them, both
with Celery's defaults. Both brokers write to disk: nsqd's log, and Redis' append-only file, synced
every second. CPU time per task is reliable on a busy machine; tasks per second are not.

Redis needs a Python client, which is not one of our dependencies: `pip install redis`.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from celery import Celery

from bench.procfs import cpu_seconds
from penstock.testing.nsqd import run_nsqd
from penstock.testing.waiting import wait_until

__all__ = ["BROKERS", "Figures", "Server", "main", "measure"]

COUNT = 10_000
SECONDS_MAX = 600.0

ROOT = Path(__file__).parents[1]

app = Celery("bench", broker=os.environ.get("BROKER_URL"), set_as_current=False)
app.conf.task_ignore_result = True


@app.task(name="bench.count")
def count() -> None:
    """Append a byte to a file, whose size is the number of completed tasks."""
    done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND)
    os.write(done, b".")
    os.close(done)


def publish(tasks: int) -> None:
    """Print the elapsed and the CPU seconds of a block."""
    count.delay()  # connects
    began, cpu_began = time.monotonic(), time.process_time()
    for _ in range(tasks - 1):
        count.delay()
    print(time.monotonic() - began, time.process_time() - cpu_began)


class Server(NamedTuple):
    """A running broker."""

    url: str
    pid: int


class Figures(NamedTuple):
    """Result of publishing or of working: tasks per second, and CPU milliseconds per task."""

    rate: float
    client_ms: float
    server_ms: float


@contextmanager
def nsqd() -> Iterator[Server]:
    with run_nsqd() as process:
        yield Server(f"nsq://{process.tcp_address}", process.pid)


@contextmanager
def redis() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = f"--port {port} --bind 127.0.0.1 --dir {folder} --appendonly yes --save".split()
        with subprocess.Popen(["redis-server", *flags, ""], stdout=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: _accepts(port), "redis-server")
                yield Server(f"redis://127.0.0.1:{port}/0", process.pid)
            finally:
                process.terminate()


BROKERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {"nsqd": nsqd, "redis": redis}


def main() -> None:
    """Measure both brokers and print a table."""
    print(f"{'':8}{'':10}{'tasks/s':>10}{'client ms':>12}{'server ms':>12}")
    for name, broker in BROKERS.items():
        if name == "redis" and importlib.util.find_spec("redis") is None:
            sys.exit("for Redis: pip install redis")
        with broker() as server:
            for half, figures in zip(("publish", "work"), measure(server, COUNT), strict=True):
                rate, client_ms, server_ms = figures
                print(f"{name:8}{half:10}{rate:10,.0f}{client_ms:12.3f}{server_ms:12.3f}")


def measure(server: Server, tasks: int) -> tuple[Figures, Figures]:
    """Results of publishing and of working."""
    with tempfile.NamedTemporaryFile() as done:
        environment = {**os.environ, "BROKER_URL": server.url, "DONE": done.name}
        published = _measure_publishing(server, tasks, environment)
        return published, _measure_working(server, tasks, environment, Path(done.name))


def _measure_publishing(server: Server, tasks: int, environment: dict[str, str]) -> Figures:
    server_began = cpu_seconds(server.pid)
    source = f"from bench.celery_brokers import publish; publish({tasks})"
    printed = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        timeout=SECONDS_MAX,
    ).stdout
    seconds, client_seconds = map(float, printed.split())
    server_seconds = cpu_seconds(server.pid) - server_began
    return _figures(tasks, seconds, client_seconds, server_seconds)


def _measure_working(
    server: Server, tasks: int, environment: dict[str, str], done: Path
) -> Figures:
    """Measure from the first completed task, to exclude the start of the worker."""
    flags = ["worker", "--concurrency=2", "--loglevel=ERROR", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "--app=bench.celery_brokers", *flags]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            first = wait_until(lambda: done.stat().st_size, "the first task", seconds=60)
            began, pids = time.monotonic(), (worker.pid, server.pid)
            cpu_began = [cpu_seconds(pid) for pid in pids]
            wait_until(lambda: done.stat().st_size >= tasks, "all tasks", seconds=SECONDS_MAX)
            seconds = time.monotonic() - began
            used = [cpu_seconds(pid) - cpu for pid, cpu in zip(pids, cpu_began, strict=True)]
        finally:
            worker.terminate()
    return _figures(tasks - first, seconds, *used)


def _figures(tasks: int, seconds: float, client_seconds: float, server_seconds: float) -> Figures:
    return Figures(tasks / seconds, client_seconds / tasks * 1e3, server_seconds / tasks * 1e3)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
