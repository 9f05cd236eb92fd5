"""Spark's Java process, in its own process group, which can be killed at any time.

PySpark starts Java in `launch_gateway`, which does not expose the process until Java accepts
connections: an exception in those seconds leaves Java running. This module starts the process
itself, and PySpark connects to it as it does under spark-submit.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from penstock.common.errors import PipelineError
from penstock.pipelines.stopping import Stop

__all__ = ["JavaExitedError", "SparkJava"]

# Interval at which the start of Java is polled.
POLL_SECONDS = 0.05

# Java's time to end by itself, after its stdin was closed.
STOP_SECONDS = 20.0

# Java's time to remove its temporary files after SIGTERM.
TERMINATE_SECONDS = 2.0

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


class JavaExitedError(PipelineError):
    """Java ended before it accepted connections."""

    def __init__(self) -> None:
        super().__init__("Spark's Java process ended before it accepted connections")


class SparkJava:
    """A running Java process. It ends with this process, because it watches its stdin."""

    def __init__(self, conf: Mapping[str, str], output: Mapping[str, Any]) -> None:
        """`output` has the arguments of Popen for stdout and stderr."""
        self._folder = tempfile.TemporaryDirectory()
        self._address_file = Path(self._folder.name, "address")
        self._ending = threading.Lock()
        submit = Path(_find_spark_home(), "bin", "spark-submit")
        settings = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        self._process = subprocess.Popen(  # noqa: S603 (Spark itself)
            [submit, *settings, *arguments],
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address_file),
            },
            start_new_session=True,  # Ctrl-C on the terminal is for this process alone
            **output,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def connect(self, stop: Stop) -> Any:
        """Connects PySpark's gateway. Raises JavaExitedError, and JobInterruptedError on a stop."""
        while not self._address_file.exists():
            if self.has_ended:
                raise JavaExitedError
            stop.wait(POLL_SECONDS)
            stop.check()
        with self._address_file.open("rb") as file:
            port, secret = read_int(file), UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
        with _environment({_PORT: str(port), _SECRET: secret}):
            return launch_gateway()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close Java's stdin, so that it exits; kill it after STOP_SECONDS."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError):
            stdin.close()
        self._end_within(STOP_SECONDS)
        self._folder.cleanup()

    def terminate(self) -> None:
        """Send SIGTERM, and kill Java after TERMINATE_SECONDS."""
        self._signal(signal.SIGTERM)
        self._end_within(TERMINATE_SECONDS)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _end_within(self, seconds: float) -> None:
        with self._ending:  # Popen.wait is not for two threads at once
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()

    def _signal(self, number: int) -> None:
        """Signals the process group, which includes the shell scripts that start Java."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
