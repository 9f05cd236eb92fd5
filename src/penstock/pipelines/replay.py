"""`penstock replay`: publish a topic's messages again, from a lake or from nsqd's history.

Messages are published in order, to one node, in chunks of one MPUB each. The state file is written
before each chunk (what is about to be sent) and after it (what is confirmed). After a crash, nsqd's
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
"""Well below what an nsqd takes at once."""

CHUNKS_PER_SECOND = 10
"""With a rate, so that it is even and not in bursts."""


class ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    """`ends` are the numbers, by node, from which on nothing is replayed: what is archived while
    a replay is under way, or before it is resumed, is not part of it."""

    ends: dict[str, int]
    from_ns: int | None = None
    to_ns: int | None = None
    messages: int = 0
    """All there is to do."""
    size_bytes: int = 0
    done: int = 0
    key: MessageKey | None = None
    """Of the last message that is confirmed."""
    sending: PendingChunk | None = None


class ReplayStateFile:
    """The state of the one replay that is asked for by these words."""

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        """Replays that are asked for in the same words are the same."""
        digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:16]}.json"
        self._words = words

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises LakeError if the same replay runs already, or if there is no place for it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("wb")
        except OSError as failure:
            raise LakeError(f"cannot write {self.path.parent} - {failure.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LakeError("this replay is running already") from None
            yield
            if not self.path.exists():
                self.path.with_suffix(".lock").unlink(missing_ok=True)

    def load(self) -> ReplayState | None:
        """None if there is nothing to resume. Raises ConfigError."""
        try:
            stored = msgspec.json.decode(self.path.read_bytes(), type=dict[str, msgspec.Raw])
            return msgspec.json.decode(stored["state"], type=ReplayState)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, msgspec.DecodeError) as failure:
            raise ConfigError(
                f"cannot read {self.path}: {failure}; --restart does without"
            ) from None

    def save(self, state: ReplayState) -> None:
        """Write this state durably in place of the old one. Raises LakeError.

        It must survive a power loss: with an older state, chunks that are already published would
        be published again.
        """
        try:
            write_json(self.path, msgspec.to_builtins({"replay": self._words, "state": state}))
        except OSError as failure:
            raise LakeError(f"cannot write {self.path} - {failure.strerror}") from None

    def remove(self) -> None:
        """It is over."""
        self.path.unlink(missing_ok=True)
        if self.path.parent.is_dir():
            fsync(self.path.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What is to be done. Without a lake, history is replayed."""

    topic: str
    target: str
    brokers: Brokers
    lake: Lake | None
    state_folder: Path
    start: str = ""
    end: str = ""
    where: str = ""
    rate: int = 0
    """Messages a second; 0 for as many as there can be."""

    def file(self) -> ReplayStateFile:
        """Its state. `--from 1h` means the same hour when it is resumed."""
        source = str(self.lake.path.resolve()) if self.lake is not None else "history"
        words = {"from": self.start, "to": self.end, "where": self.where, "source": source}
        return ReplayStateFile(
            self.state_folder, words | {"topic": self.topic, "target": self.target}
        )


def check_config(config: ReplayConfig, *, dry_run: bool) -> None:
    """Before Spark is started: whether it can be done at all. Changes nothing. Raises LakeError,
    NotConnectedError or ConfigError."""
    parse_time_range(config.start, config.end)
    if names.is_ephemeral(config.target):
        raise ConfigError(f"{config.target} is ephemeral: what it has stored cannot be looked up")
    if config.lake is not None:
        config.lake.existing_topic(config.topic)
    else:
        config.brokers.survey([config.topic])
    if not dry_run:
        config.brokers.check_reachable()


class Replay:
    """A replay that has been counted, and can be run."""

    def __init__(self, spark: SparkSession, config: ReplayConfig, *, restart: bool = False) -> None:
        """Count the messages; change nothing. Raises LakeError, ConfigError, NotConnectedError or
        PipelineError."""
        self._config = config
        self._file = config.file()
        with translate_spark_errors():
            source = _source(spark, config)
            known = None if restart else self._file.load()
            self.is_resumed = known is not None
            self.state = known or _begun(config, source)
            part = source.select(
                ends=self.state.ends,
                from_ns=self.state.from_ns,
                to_ns=self.state.to_ns,
                where=config.where,
            )
            self._left = part.after(self.state.key)
            self.extent = self._left.measure()
        if not self.is_resumed:
            self.state = msgspec.structs.replace(
                self.state, messages=self.extent.messages, size_bytes=self.extent.size_bytes
            )

    def run(self, stop: Stop) -> ReplayState:
        """Until all is published, or it is told to stop. Raises Error; what is confirmed until
        then is not published again when it is resumed."""
        with self._file.locked():
            publisher = ChunkPublisher(self._config.brokers, self._config.target, stop)
            publisher.choose_node()
            self._file.save(self.state)
            try:
                with translate_spark_errors(), progress_display("replay") as show:
                    self._publish_all(publisher, stop, show)
            except Error:
                if not stop.is_requested:  # or it is what we were waiting for that has been stopped
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
                f"{self.state.messages:,} messages were counted, and {self.state.done:,} published:"
                " was something removed meanwhile?"
            )

    def _publish(self, publisher: ChunkPublisher, bodies: list[bytes]) -> None:
        """Unless it has been, by a replay that was killed before it could say so."""
        before = self.state.sending
        if before is not None and publisher.is_stored(before, bodies):
            return
        chunk = publisher.prepare(len(bodies))
        self.state = msgspec.structs.replace(self.state, sending=chunk)
        self._file.save(self.state)
        publisher.publish(chunk, bodies)

    def _chunks(self, first: int | None, size: int) -> Iterator[tuple[MessageKey, list[bytes]]]:
        """Each with the key of its last message. The first is as large as the one that was under
        way when this replay was interrupted: it is the same one then."""
        last, bodies = MessageKey(0, 0, 0), list[bytes]()
        size_bytes, limit = 0, first or size
        for batch in self._left.sorted_batches(self.extent):
            columns = (batch.column(name).to_pylist() for name in ("timestamp_ns", "node", "seq"))
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
            left=self.state.messages - self.state.done,
        )


class RateLimiter:
    """So many a second, or all at once if that is 0. A delay is made up for, by a second's worth.
    Pure."""

    def __init__(self, rate: int, now_seconds: float) -> None:
        self._rate = rate
        self._sent = 0
        self._began = now_seconds
        self.chunk_messages = CHUNK_MESSAGES
        if rate:
            self.chunk_messages = min(max(rate // CHUNKS_PER_SECOND, 1), CHUNK_MESSAGES)

    def seconds_to_wait(self, now_seconds: float) -> float:
        """Until the next chunk may go."""
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


def _begun(config: ReplayConfig, source: MessageTable) -> ReplayState:
    from_ns, to_ns = parse_time_range(config.start, config.end)
    return ReplayState(ends=source.ends, from_ns=from_ns, to_ns=to_ns)
