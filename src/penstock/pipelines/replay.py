"""`penstock replay`: publish a topic's messages again, from a lake or from nsqd's history.

Messages are published in order, to one node, in chunks of one MPUB each. The state file is written
before each chunk (to record the attempt) and after it (to record success). After a crash, nsqd's
log shows whether the last chunk was stored. The same command resumes after the last stored message.
"""

import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import SparkSession

from penstock.common import names
from penstock.common.errors import ConfigError, Error, LakeError, PipelineError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.chunk_publisher import ChunkPublisher, PendingChunk
from penstock.pipelines.lake import Lake, fsync, write_json
from penstock.pipelines.message_table import (
    MessageKey,
    MessageTable,
    history_messages,
    lake_messages,
    parse_time_range,
)
from penstock.pipelines.progress import QueryMetrics, RateMeter, ShowMetrics, progress_display
from penstock.pipelines.running import Stop
from penstock.pipelines.spark_errors import translate_spark_errors

__all__ = [
    "RateLimiter",
    "Replay",
    "ReplayConfig",
    "ReplayState",
    "ReplayStateFile",
    "check_config",
]

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1 << 20
"""Well below nsqd's maximum body size."""

CHUNKS_PER_SECOND = 10
"""With a rate limit, to avoid bursts."""


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the state file.

    `ends` has the end of each log, so that messages archived after the start of the replay are not
    part of it.
    """

    ends: dict[str, int]
    logs_by: Literal["log", "node"] = "node"
    """Whether `ends` and `key` have log ids or, in states of earlier versions, node ids."""
    from_ns: int | None = None
    to_ns: int | None = None
    messages: int = 0
    """Total number of messages to replay."""
    size_bytes: int = 0
    done: int = 0
    key: MessageKey | None = None
    """Key of the last confirmed message."""
    sending: PendingChunk | None = None


class ReplayStateFile:
    """State file of the replay with these arguments."""

    def __init__(self, folder: Path, arguments: dict[str, str]) -> None:
        """Equal arguments mean the same replay."""
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:16]}.json"
        self._arguments = arguments

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises LakeError if the same replay is running, or if the folder is not writable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("wb")
        except OSError as failure:
            raise LakeError(f"cannot write {self.path.parent} - {failure.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LakeError("this replay is already running") from None
            yield
            if not self.path.exists():
                self.path.with_suffix(".lock").unlink(missing_ok=True)

    def load(self) -> ReplayState | None:
        """Read the state; None if there is nothing to resume. Raises ConfigError."""
        try:
            stored = msgspec.json.decode(self.path.read_bytes(), type=dict[str, msgspec.Raw])
            return msgspec.json.decode(stored["state"], type=ReplayState)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, msgspec.DecodeError) as failure:
            raise ConfigError(f"cannot read {self.path}: {failure}; --restart ignores it") from None

    def save(self, state: ReplayState) -> None:
        """Write this state durably in place of the old one. Raises LakeError.

        It must survive a power loss: with an older state, chunks that are already published would
        be published again.
        """
        try:
            write_json(self.path, msgspec.to_builtins({"replay": self._arguments, "state": state}))
        except OSError as failure:
            raise LakeError(f"cannot write {self.path} - {failure.strerror}") from None

    def remove(self) -> None:
        """Remove the file of a complete replay."""
        self.path.unlink(missing_ok=True)
        if self.path.parent.is_dir():
            fsync(self.path.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Options of `penstock replay`. Without a lake, nsqd's history is replayed."""

    topic: str
    target: str
    brokers: Brokers
    lake: Lake | None
    state_folder: Path
    start: str = ""
    end: str = ""
    where: str = ""
    rate: int = 0
    """Maximum messages per second; 0: unlimited."""

    def state_file(self) -> ReplayStateFile:
        """Keeps the absolute time range: `--from 1h` means the same hour after a resume."""
        source = str(self.lake.path.resolve()) if self.lake is not None else "history"
        arguments = {"from": self.start, "to": self.end, "where": self.where, "source": source}
        return ReplayStateFile(
            self.state_folder, arguments | {"topic": self.topic, "target": self.target}
        )


def check_config(config: ReplayConfig, *, dry_run: bool) -> None:
    """Check the options before Spark is started, without side effects. Raises LakeError,
    NotConnectedError or ConfigError."""
    parse_time_range(config.start, config.end)
    if names.is_ephemeral(config.target):
        raise ConfigError(f"{config.target} is ephemeral: a replay requires a topic with a log")
    if config.lake is not None:
        config.lake.existing_topic(config.topic)
    else:
        config.brokers.snapshot([config.topic])
    if not dry_run:
        config.brokers.check_reachable()


class Replay:
    """A replay whose messages have been counted."""

    def __init__(self, spark: SparkSession, config: ReplayConfig, *, restart: bool = False) -> None:
        """Count the messages; change nothing. Raises LakeError, ConfigError, NotConnectedError or
        PipelineError."""
        self._config = config
        self._file = config.state_file()
        with translate_spark_errors():
            source = _source(spark, config)
            known = None if restart else self._file.load()
            self.is_resumed = known is not None
            self.state = known or _new_state(config, source)
            if self.state.logs_by == "node":
                _check_unique_node_ids(config)
                source = source.by_node()
            part = source.select(
                ends=self.state.ends,
                from_ns=self.state.from_ns,
                to_ns=self.state.to_ns,
                where=config.where,
            )
            self._remaining = part.after(self.state.key)
            self.extent = self._remaining.measure()
        if not self.is_resumed:
            self.state = msgspec.structs.replace(
                self.state, messages=self.extent.messages, size_bytes=self.extent.size_bytes
            )

    def run(self, stop: Stop) -> ReplayState:
        """Publish until all messages are published or a stop is requested. Raises Error; a resumed
        replay does not publish confirmed messages again."""
        with self._file.locked():
            publisher = ChunkPublisher(self._config.brokers, self._config.target, stop)
            publisher.choose_node()
            self._file.save(self.state)
            try:
                with translate_spark_errors(), progress_display("replay") as show:
                    self._publish_all(publisher, stop, show)
            except Error:
                if not stop.is_requested:  # a stop also ends the calls that the publisher waits for
                    raise
            if self.state.done == self.state.messages:
                self._file.remove()
        return self.state

    def _publish_all(self, publisher: ChunkPublisher, stop: Stop, show: ShowMetrics) -> None:
        pace, meter = RateLimiter(self._config.rate, time.monotonic()), RateMeter()
        first = self.state.sending.count if self.state.sending is not None else None
        for keys, bodies in self._chunks(first, pace.chunk_messages):
            if stop.is_requested or stop.wait(pace.seconds_to_wait(time.monotonic())):
                return
            self._publish(publisher, bodies)
            pace.add(len(bodies))
            self.state = msgspec.structs.replace(
                self.state, done=self.state.done + len(bodies), key=keys, sending=None
            )
            self._file.save(self.state)
            show([self._metrics(meter)])
        if self.state.done < self.state.messages:
            raise PipelineError(
                f"{self.state.messages:,} messages were counted, but {self.state.done:,} published:"
                " were messages deleted meanwhile?"
            )

    def _publish(self, publisher: ChunkPublisher, bodies: list[bytes]) -> None:
        """Publish a chunk, unless a killed replay has already published it."""
        before = self.state.sending
        if before is not None and publisher.is_stored(before, bodies):
            return
        chunk = publisher.prepare(len(bodies))
        self.state = msgspec.structs.replace(self.state, sending=chunk)
        self._file.save(self.state)
        publisher.publish(chunk, bodies)

    def _chunks(self, first: int | None, size: int) -> Iterator[tuple[MessageKey, list[bytes]]]:
        """Chunks with the key of their last message. After an interruption, the first chunk has the
        size of the interrupted one, so that both have the same messages."""
        last, bodies = MessageKey(0, "", 0), list[bytes]()
        size_bytes, limit = 0, first or size
        for batch in self._remaining.sorted_batches(self.extent):
            columns = (batch.column(name).to_pylist() for name in ("timestamp_ns", "log", "seq"))
            for *key, body in zip(*columns, batch.column("body").to_pylist(), strict=True):
                if bodies and first is None and size_bytes + len(body) > CHUNK_BYTES:
                    yield last, bodies
                    bodies, size_bytes = [], 0
                bodies.append(body)
                size_bytes += len(body)
                last = MessageKey(*key)
                if len(bodies) == limit:
                    yield last, bodies
                    bodies, size_bytes, limit, first = [], 0, size, None
        if bodies:
            yield last, bodies

    def _metrics(self, meter: RateMeter) -> QueryMetrics:
        return QueryMetrics(
            name=f"{self._config.topic} to {self._config.target}",
            rows=self.state.done,
            rows_per_second=meter.rate(time.monotonic(), self.state.done),
            remaining=self.state.messages - self.state.done,
        )


class RateLimiter:
    """Limits messages per second; 0 means unlimited. After a delay it catches up by at most one
    second's worth. Pure."""

    def __init__(self, rate: int, now_seconds: float) -> None:
        self._rate = rate
        self._sent = 0
        self._began = now_seconds
        self.chunk_messages = CHUNK_MESSAGES
        if rate:
            self.chunk_messages = min(max(rate // CHUNKS_PER_SECOND, 1), CHUNK_MESSAGES)

    def seconds_to_wait(self, now_seconds: float) -> float:
        """Delay until the next chunk may be sent."""
        if not self._rate:
            return 0.0
        due = self._began + self._sent / self._rate
        self._began += max(now_seconds - 1.0 - due, 0.0)
        return max(due - now_seconds, 0.0)

    def add(self, count: int) -> None:
        self._sent += count


def _source(spark: SparkSession, config: ReplayConfig) -> MessageTable:
    if config.lake is not None:
        return lake_messages(spark, config.lake, config.topic)
    return history_messages(spark, config.brokers, config.topic)


def _new_state(config: ReplayConfig, source: MessageTable) -> ReplayState:
    from_ns, to_ns = parse_time_range(config.start, config.end)
    return ReplayState(ends=source.ends, logs_by="log", from_ns=from_ns, to_ns=to_ns)


def _check_unique_node_ids(config: ReplayConfig) -> None:
    """Raises ConfigError if a replay of an earlier version cannot be resumed, because two nodes
    have the same id."""
    if config.lake is not None:
        return
    logs = config.brokers.snapshot([config.topic]).logs.values()
    bases = {found.base: found.node_id for found in logs}
    if len(set(bases.values())) < len(bases):
        raise ConfigError(
            f"{' and '.join(bases)} have the same node id, and the replay was started by an earlier"
            " version, which identifies messages by it: --restart begins again"
        )
