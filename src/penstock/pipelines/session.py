"""The Spark session of a command.

    with (
        stop_on_signals() as stop,
        spark_session(SparkSettings(master="spark://10.0.0.1:7077"), stop) as spark,
    ):
        ...

If Spark is already running in this process, or under spark-submit, the command uses that session
with its master and log settings, and leaves it running. Otherwise the command starts Java and stops
it at the end. The output of Java and Spark goes only to `--spark-log`; errors arrive as exceptions.

PySpark's `launch_gateway` does not expose the Java process until Java accepts connections, and an
exception before that would leave Java running. `SparkJava` therefore starts the process itself, and
PySpark connects to it as it does under spark-submit.
"""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock.common.errors import ConfigError, Error, PipelineError
from penstock.pipelines.running import Stop
from penstock.pipelines.spark_errors import translate_spark_errors

__all__ = [
    "LOCAL_MASTER",
    "JavaExitedError",
    "SparkJava",
    "SparkSettings",
    "configuration",
    "java_program",
    "spark_session",
]

LOCAL_MASTER = "local[*]"

# Maximum tasks after a shuffle on one machine; more are not worth their overhead.
LOCAL_SHUFFLES_MAX = 8

# Lines of Java's output kept for the error message if it does not start.
LINES_KEPT = 50

# Maximum wait for the rest of Java's output after it has ended.
OUTPUT_SECONDS = 20.0

# Interval at which the start of Java is polled.
POLL_SECONDS = 0.05

# Java's time to end by itself, after its stdin was closed.
STOP_SECONDS = 20.0

# Java's time to remove its temporary files after SIGTERM.
TERMINATE_SECONDS = 2.0

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"

_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "20",  # all are read twice a second
    # Speed: writes rows of a few hours directly, instead of sorting them by hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}
_AT_START = {
    "spark.ui.showConsoleProgress": "false",
    # A busy machine may take longer than Spark's 15 s to start a Python worker.
    "spark.python.authenticate.socketTimeout": "120s",
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, LOCAL_SHUFFLES_MAX)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Spark options of a command. `log` is a file, `-` for stderr, or empty for no log."""

    master: str = LOCAL_MASTER
    log: str = ""
    conf: Mapping[str, str] | None = None


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


@contextmanager
def spark_session(settings: SparkSettings, stop: Stop) -> Iterator[SparkSession]:
    """Raises ConfigError if there is no Java, PipelineError if Spark does not start, and
    JobInterruptedError if a stop is requested before it has started."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 (no public API)
        yield _configure(SparkSession.builder.getOrCreate(), settings)
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and stops it
        _create_context(None, None)
        session = _configure(SparkSession.builder.getOrCreate(), settings)
        yield session
        session.stop()
    else:
        with _own_java(settings, stop) as session:
            yield session


def configuration(settings: SparkSettings) -> dict[str, str]:
    """Configuration of a session that this process starts. The user's settings override it."""
    is_local = settings.master.startswith("local")
    log_level = {"spark.log.level": "INFO" if settings.log else "ERROR"}
    return {
        "spark.app.name": "penstock",
        "spark.master": settings.master,
        **_ALWAYS,
        **_AT_START,
        **(_LOCAL if is_local else {}),
        **log_level,
        **(settings.conf or {}),
    }


def java_program(environment: Mapping[str, str]) -> str:
    """Path of the Java program that Spark will use. Raises ConfigError if there is none."""
    home = environment.get("JAVA_HOME", "")
    if home:
        program = Path(home) / "bin" / "java"
        if os.access(program, os.X_OK):
            return str(program)
        raise ConfigError(f"Spark requires Java 17 or later; JAVA_HOME ({home}) has no bin/java")
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise ConfigError(
            "Spark requires Java 17 or later, but no java was found: install it (for example the"
            " package openjdk-17-jre-headless), or set JAVA_HOME to its folder"
        )
    return found


def _configure(session: SparkSession, settings: SparkSettings) -> SparkSession:
    for name, value in {**_ALWAYS, **(settings.conf or {})}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


@contextmanager
def _own_java(settings: SparkSettings, stop: Stop) -> Iterator[SparkSession]:
    java_path = java_program(os.environ)
    # Otherwise Spark's workers use the first python3 of the PATH, possibly another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.log != "-":
        _silence_python()
    with (
        _JavaOutput(settings.log) as output,
        SparkJava(configuration(settings), output.popen_arguments()) as java,
        stop.killing(java.kill),
    ):
        try:
            with translate_spark_errors(), stop.interrupting(java.terminate):
                session = _start_session(settings, java, stop)
            with translate_spark_errors():
                yield session
        except JavaExitedError:
            raise _start_failure(java_path, output.tail()) from None
        except PipelineError:
            if java.has_ended and not stop.is_requested:
                raise PipelineError(
                    "Spark's Java process ended (out of memory?): see --spark-log FILE"
                ) from None
            raise
        finally:
            _disconnect(java)


def _start_session(settings: SparkSettings, java: SparkJava, stop: Stop) -> SparkSession:
    conf = SparkConf(loadDefaults=False).setAll(list(configuration(settings).items()))
    _create_context(conf, java.connect(stop))
    return SparkSession.builder.getOrCreate()


def _create_context(conf: SparkConf | None, gateway: Any) -> None:
    """Runs in a thread, because in the main thread SparkContext replaces our SIGINT handler."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(SparkContext, conf=conf, gateway=gateway).result()


def _start_failure(java_path: str, said: list[str]) -> Error:
    """The error for a Java process that ended early, from its output."""
    if any("UnsupportedClassVersionError" in line for line in said):
        return ConfigError(f"Spark requires Java 17 or later, but {java_path} is older")
    last = next((line for line in reversed(said) if line.strip()), "no output")
    return PipelineError(f"Spark did not start: {last.strip()}")


def _disconnect(java: SparkJava) -> None:
    """Stop Spark and forget its gateway, so that another Spark can be started afterwards."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001
    if not java.has_ended:
        with suppress(Py4JError, PySparkException, OSError):  # Java may end meanwhile
            if context is not None:
                context.stop()
            if gateway is not None:
                gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001


def _silence_python() -> None:
    """Disable the logs of py4j and PySpark, which repeat the exceptions that they raise."""
    log = logging.getLogger("py4j")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


class _JavaOutput:
    """Where Java's and Spark's own output goes: a file, stderr, or the last lines in memory."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._file: IO[bytes] | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._log and self._log != "-":
            try:
                self._file = Path(self._log).open("ab")
            except OSError as failure:
                raise ConfigError(f"cannot write {self._log} - {failure.strerror}") from None
        elif not self._log:
            read_end, write_end = os.pipe()
            self._file = os.fdopen(write_end, "wb")
            self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def popen_arguments(self) -> dict[str, object]:
        return {} if self._file is None else {"stdout": self._file, "stderr": self._file}

    def tail(self) -> list[str]:
        """The last lines of the output. Java must have ended."""
        if self._file is not None:
            self._file.close()
        if self._reader is not None:
            self._reader.join(OUTPUT_SECONDS)
        elif self._log not in ("", "-"):
            self._lines.extend(Path(self._log).read_text(errors="replace").splitlines())
        return list(self._lines)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, errors="replace") as lines:
            self._lines.extend(lines)
