"""`penstock archive`: write topics to a lake, each message exactly once.

Each topic has its own Spark query with a checkpoint, a schema and a folder, so topics can be added
and removed independently. Spark plans and reads the batches; `lake_writer` commits them.
"""

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError, HttpRequestError, LakeError, NotConnectedError
from penstock.pipelines.brokers import Brokers
from penstock.pipelines.lake import Lake, TopicFolder
from penstock.pipelines.lake_writer import SMALL_FILES, Commits, Compaction, count_rows
from penstock.pipelines.progress import QueryMeter
from penstock.pipelines.running import RunningQuery, Stop, run_queries, start_query
from penstock.pipelines.spark_errors import translate_spark_errors
from penstock.pipelines.tables import (
    MESSAGE_COLUMNS,
    files_table,
    parse_bodies,
    rejection_reason,
    resolve_schema,
    value_column,
    violates_schema,
)
from pyspark_nsq.nodes import ClusterSnapshot
from pyspark_nsq.offsets import LogKey, NodeIdOffsets, Offsets, from_json
from pyspark_nsq.options import Topics

__all__ = ["ArchiveConfig", "ArchiveResult", "archive", "check_config"]

DEFAULT_CHANNEL = "penstock-archive"

TASK_ROWS = 500_000
"""Maximum messages per task. Each task writes one file, so few tasks make large files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Options of `penstock archive`."""

    topics: tuple[str, ...]
    lake: str
    brokers: Brokers
    channel: str = DEFAULT_CHANNEL
    once: bool = False
    trigger_seconds: float = 10.0
    batch_rows: int = 1_000_000
    schema: str = ""
    compact: bool | None = None
    """True: merge all small files at the end; None: where there are many; False: never."""


@dataclass(slots=True)
class ArchiveResult:
    """Result for one topic."""

    topic: str
    messages: int = 0
    rejected: int = 0
    files_merged: int = 0
    total: int = 0
    """Messages of the topic in the lake, including rejected ones."""


def check_config(config: ArchiveConfig) -> ClusterSnapshot:
    """Check topics and lake before Spark is started, without side effects.

    Raises LakeError, NotConnectedError or ConfigError.
    """
    Lake.check_usable(config.lake)
    for topic in config.topics:
        Lake(Path(config.lake)).topic(topic)
    return config.brokers.snapshot(config.topics)


def archive(
    spark: SparkSession, config: ArchiveConfig, snapshot: ClusterSnapshot, stop: Stop
) -> list[ArchiveResult]:
    """Run until a stop is requested or, with `once`, until all messages in `snapshot` are archived.

    Raises PipelineError, LakeError or ConfigError; batches committed before remain in the lake.
    """
    folders = [Lake(Path(config.lake)).topic(topic) for topic in config.topics]
    _check_file_system(spark)
    with translate_spark_errors(), stop.interrupting(spark.sparkContext.cancelAllJobs):
        schemas = [
            resolve_schema(folder, config.schema, _table(spark, config, folder.name))
            for folder in folders
        ]
    Lake.create(config.lake)
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(folder.locked())
        archives = [
            _TopicArchive(spark, config, folder, schema)
            for folder, schema in zip(folders, schemas, strict=True)
        ]
        _run(archives, config, snapshot, stop)
        for each in archives:
            each.wait_for_batch()
        if config.compact is not False and (config.once or config.compact):
            for each in archives:
                each.compact(small_files=2 if config.compact else SMALL_FILES)
        return [each.result() for each in archives]


def _run(
    archives: "Sequence[_TopicArchive]",
    config: ArchiveConfig,
    snapshot: ClusterSnapshot,
    stop: Stop,
) -> None:
    ends = {key: found.log.next_seq for key, found in snapshot.logs.items()}
    running: list[RunningQuery] = []
    for each in archives:
        if stop.is_requested:
            break
        target = {key: seq for key, seq in ends.items() if key.topic == each.topic}
        meter = QueryMeter(each.topic, target=target if config.once else None, counts=each.counts)
        with translate_spark_errors(), ExitStack() as others:
            for before in running:  # stop the earlier queries if this one does not start
                others.callback(before.query.stop)
            running.append(RunningQuery(start_query(each.start, stop), meter))
            others.pop_all()
    run_queries("archive", running, stop)


class _TopicArchive:
    """The query of one topic, and the folder that it writes."""

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        folder: TopicFolder,
        schema: StructType | None,
    ) -> None:
        self.topic = folder.name
        self._spark = spark
        self._config = config
        self._folder = folder
        self._schema = schema
        if schema is not None:
            folder.set_body_schema(json.loads(schema.json()))
        self._compaction = Compaction(folder, self._merge)
        self._commits = Commits(folder)
        self._node_ids = NodeIdOffsets()
        self._before = self._commits.state
        self._files_merged = 0
        self._writing = threading.Lock()

    def start(self) -> StreamingQuery:
        starting = "earliest"
        if self._next_seqs:  # used only if the checkpoint was deleted
            starting = json.dumps({self.topic: self._next_seqs})
        stream = (
            self._spark.readStream.format("nsq")
            .options(**self._config.brokers.options())
            .option("topic", self.topic)
            .option("channel", self._config.channel)
            .option("startingOffsets", starting)
            .option("maxMessagesPerTrigger", self._config.batch_rows)
            .option("minPartitions", self._spark.sparkContext.defaultParallelism)
            .option("maxRecordsPerPartition", TASK_ROWS)
            .load()
        )
        trigger: dict[str, Any] = {"processingTime": f"{self._config.trigger_seconds} seconds"}
        if self._config.once:
            trigger = {"availableNow": True}
        return (
            stream.writeStream.foreachBatch(self._write)
            .queryName(f"archive {self.topic}")
            .option("checkpointLocation", str(self._folder.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def wait_for_batch(self) -> None:
        """Wait for a batch that is still being written after its query was stopped."""
        with self._writing:
            return

    def counts(self) -> dict[str, int]:
        """Messages committed by this process and, with a schema, how many of them were rejected."""
        done = self.result()
        counts = {"messages": done.messages}
        return counts | {"rejected": done.rejected} if self._schema is not None else counts

    def result(self) -> ArchiveResult:
        state, before = self._commits.state, self._before
        return ArchiveResult(
            self.topic,
            messages=state.messages - before.messages,
            rejected=state.rejected - before.rejected,
            files_merged=self._files_merged,
            total=state.messages,
        )

    def compact(self, *, small_files: int = SMALL_FILES) -> None:
        with translate_spark_errors():
            self._files_merged += self._compaction.run(small_files=small_files)

    # Batches.

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        """Callback of Spark. The batch may have been committed before."""
        with self._writing:
            self._write_once(batch, batch_id)

    def _write_once(self, batch: DataFrame, batch_id: int) -> None:
        start_offsets, end = self._start_offsets(batch_id), self._offsets(batch_id)
        start_offsets, end = self._with_log_ids(start_offsets, end)
        self._check_start(start_offsets)
        next_seqs = {key.log_id: seq for key, seq in end.items()}
        commits = self._commits
        known = self._next_seqs
        if next_seqs and all(known.get(log_id, -1) >= seq for log_id, seq in next_seqs.items()):
            return  # the lake has the whole batch
        commits.begin()
        rows, rejected = self._stage(self._new_rows(batch, start_offsets, end))
        commits.commit(next_seqs, messages=rows, rejected=rejected)
        if self._config.compact is not False:
            self._files_merged += self._compaction.run(commits.hours())

    def _with_log_ids(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Replace node ids, which earlier versions have stored, by log ids in the state of the lake
        and in the offsets of a batch. Node ids of unreachable nodes remain."""
        known = {LogKey(self.topic, log_id): seq for log_id, seq in self._next_seqs.items()}
        if not any(key.is_node_id for key in (*known, *start, *end)):
            return start, end
        try:
            snapshot = self._config.brokers.nodes().snapshot(Topics((self.topic,)))
        except (HttpRequestError, NotConnectedError):
            return start, end
        known, start, end = (
            self._node_ids.convert(each, snapshot.extents(), is_complete=not snapshot.failures)
            for each in (known, start, end)
        )
        self._commits.rename_logs({key.log_id: seq for key, seq in known.items()})
        return start, end

    @property
    def _next_seqs(self) -> dict[str, int]:
        return self._commits.state.next_seqs

    def _stage(self, batch: DataFrame) -> tuple[int, int]:
        """Write the batch to staging. Returns the numbers of messages and of rejected messages.

        If there are rejected messages, the batch is read twice. Raises LakeError if staged rows are
        missing.
        """
        commits, schema = self._commits, self._schema
        parsed = batch if schema is None else parse_bodies(batch, schema)
        is_invalid = sql.lit(False) if schema is None else violates_schema(schema)
        columns = [*MESSAGE_COLUMNS] if schema is None else [*MESSAGE_COLUMNS, value_column(schema)]
        counts = Observation()
        observed = parsed.observe(
            counts, sql.count(sql.lit(1)).alias("rows"), sql.count_if(is_invalid).alias("rejected")
        )
        _stage(observed.where(~is_invalid).select(*columns), commits.staged_messages)
        rows, rejected = (int(counts.get.get(name) or 0) for name in ("rows", "rejected"))
        if rejected:
            bad = parsed.where(is_invalid).select(*MESSAGE_COLUMNS, rejection_reason())
            _stage(bad, commits.staged_rejected)
        self._check_staged(commits.staged_messages, rows - rejected)
        self._check_staged(commits.staged_rejected, rejected)
        return rows, rejected

    def _check_staged(self, folder: Path, expected: int) -> None:
        """Raises LakeError unless this process sees all rows that the tasks have written."""
        visible = count_rows(_parquet_files(folder))
        if visible != expected:
            raise LakeError(
                f"{self.topic}: Spark's executors wrote {expected:,} messages, but {visible:,} of"
                f" them are in {folder}: the driver and all executors must share the lake's folder;"
                " the batch is not committed"
            )

    def _new_rows(self, batch: DataFrame, start_offsets: Offsets, end: Offsets) -> DataFrame:
        """Remove messages that the lake has; an outdated checkpoint delivers them again. Raises
        LakeError if the log of such messages is unknown."""
        for log_id, seq in self._next_seqs.items():
            key = LogKey(self.topic, log_id)
            start = start_offsets.get(key, seq if key not in end else -1)
            if start in (seq, end.get(key)):
                continue
            if key.is_node_id:
                raise LakeError(
                    f"{key}: the lake is from an earlier version, and cannot be continued while the"
                    " node is unreachable"
                )
            batch = batch.where((sql.col("log") != log_id) | (sql.col("seq") >= seq))
        return batch

    def _check_start(self, start_offsets: Offsets) -> None:
        for key, seq in start_offsets.items():
            have = self._next_seqs.get(key.log_id, -1)
            if seq > have:
                raise LakeError(
                    f"{key}: the checkpoint is at message {seq}, but the"
                    f" lake ends at {have}: was the lake restored from a backup? To continue from"
                    f" the end of the lake, delete {self._folder.checkpoint}"
                )

    def _start_offsets(self, batch_id: int) -> Offsets:
        """Start offsets of a batch; the checkpoint has none for the first batch."""
        return self._offsets(batch_id - 1) if batch_id > 0 else {}

    def _offsets(self, batch_id: int) -> Offsets:
        """End offsets of a batch, from Spark's checkpoint. Raises LakeError."""
        path = self._folder.checkpoint / "offsets" / str(batch_id)
        try:
            return from_json(json.loads(path.read_text(encoding="utf-8").splitlines()[2]))
        except (OSError, ValueError, IndexError, ConfigError) as failure:
            raise LakeError(
                f"{self.topic}: cannot read the offsets of batch {batch_id} in {path} ({failure});"
                " the batch is not committed"
            ) from None

    def _merge(self, files: Sequence[Path], target: Path, count: int) -> None:
        table = files_table(self._spark, files, self._schema)
        table.coalesce(count).write.parquet(str(target))


def _check_file_system(spark: SparkSession) -> None:
    """Raises ConfigError if Spark's default file system is not the local one."""
    with translate_spark_errors():
        session = spark._jsparkSession  # noqa: SLF001 (Python has no API for it)
        default = session.sessionState().newHadoopConf().get("fs.defaultFS") or "file:///"
    if not default.startswith("file:"):
        raise ConfigError(
            f"a lake must be a local folder, but Spark's default file system is {default}: pass"
            " --spark-conf spark.hadoop.fs.defaultFS=file:///"
        )


def _table(spark: SparkSession, config: ArchiveConfig, topic: str) -> DataFrame:
    reader = spark.read.format("nsq").options(**config.brokers.options())
    return reader.option("topic", topic).load()


def _stage(rows: DataFrame, folder: Path) -> None:
    """Write rows to folders by date and hour, in UTC, the time zone of the session."""
    timed = rows.withColumns(
        {
            "date": sql.date_format("timestamp", "yyyy-MM-dd"),
            "hour": sql.date_format("timestamp", "HH"),
        }
    )
    timed.write.partitionBy("date", "hour").mode("overwrite").parquet(str(folder))


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))
