"""The definition of a stream: sources, queries and sinks, from a TOML file or from flags.

    [sources.orders]
    schema = "order_id STRING, amount DOUBLE, ts TIMESTAMP"
    watermark = "ts, 10 minutes"

    [queries]
    revenue = "SELECT window.start, sum(amount) AS sum FROM orders GROUP BY window(ts, '1 minute')"

    [sinks.revenue]
    topic = "revenue"

This module checks everything that requires neither Spark nor the nodes. SQL and schemas are checked
by Spark later.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.common import names
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError

__all__ = [
    "FORMATS",
    "MODES",
    "EventTime",
    "SinkDefinition",
    "SourceDefinition",
    "StreamDefinition",
    "load_definition",
    "parse_definition",
]

# Maximum messages per source in a micro-batch: large enough for speed, small enough to repeat.
MESSAGES_PER_BATCH = 500_000

FORMATS = ("parquet", "json", "csv")
MODES = ("append", "update", "complete")

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SINK_NAME = re.compile(r"[A-Za-z0-9_-]+")
_INTERVAL = re.compile(r"[0-9]+ (millisecond|second|minute|hour|day)s?")

T = TypeVar("T", bound=msgspec.Struct)


class EventTime(NamedTuple):
    """The column with the event time, and the maximum delay of late rows."""

    column: str
    delay: str


class SourceDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a table. Without a schema, it has the columns of a message."""

    topic: str = ""
    schema: str = ""
    watermark: str = ""
    rejects: str = ""
    start: str = "earliest"
    max_messages: int = MESSAGES_PER_BATCH
    nsqd: str | list[str] = ""
    lookupd: str | list[str] = ""
    options: dict[str, str | int | bool] = {}

    @property
    def event_time(self) -> EventTime | None:
        """Raises ConfigError if the watermark is not a column and a duration."""
        if not self.watermark:
            return None
        column, comma, delay = (part.strip() for part in self.watermark.rpartition(","))
        if not (column and comma):
            raise ConfigError(f"watermark must be like 'ts, 10 minutes', not {self.watermark!r}")
        return EventTime(column, _interval("watermark", delay))


class SinkDefinition(msgspec.Struct, frozen=True, kw_only=True, rename={"query": "from"}):
    """The target of a query's rows: a topic, or files in a folder."""

    query: str = ""
    topic: str = ""
    path: str = ""
    format: str = "parquet"
    partition_by: str | list[str] = ""
    mode: str = "append"
    trigger: str = ""
    nsqd: str | list[str] = ""
    lookupd: str | list[str] = ""
    options: dict[str, str | int | bool] = {}

    @property
    def interval(self) -> str:
        """Interval between two batches, in Spark's notation; by default none."""
        return _interval("trigger", self.trigger) if self.trigger else "0 seconds"


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A whole definition. A query may use the queries before it."""

    name: str = ""
    checkpoint: str = ""
    sources: dict[str, SourceDefinition] = {}
    queries: dict[str, str] = {}
    sinks: dict[str, SinkDefinition] = {}

    def dependencies_of(self, name: str) -> "StreamDefinition":
        """This query with the sources and queries that it uses. May include too many, because
        names are searched in the SQL as words."""
        wanted = {name.lower()}
        queries: dict[str, str] = {}
        for earlier, sql in reversed(self.queries.items()):
            if earlier.lower() in wanted:
                queries[earlier] = sql
                wanted |= {word.lower() for word in _IDENTIFIER.findall(sql)}
        sources = {each: it for each, it in self.sources.items() if each.lower() in wanted}
        ordered = dict(reversed(queries.items()))
        return msgspec.structs.replace(self, sources=sources, queries=ordered, sinks={})


def load_definition(path: str, checkpoint: str | None = None) -> StreamDefinition:
    """Read a TOML file. `checkpoint` overrides the file's. Raises ConfigError if the file is
    unreadable or invalid."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise ConfigError(f"cannot read {path} - {failure.strerror}") from None
    except ValueError as failure:
        raise ConfigError(f"{path}: {failure}") from None
    try:
        return parse_definition({"name": Path(path).stem, **data}, checkpoint)
    except ConfigError as failure:
        raise ConfigError(f"{path}: {failure}") from None


def parse_definition(data: Mapping[str, Any], checkpoint: str | None = None) -> StreamDefinition:
    """Check the data and fill in defaults. Raises ConfigError."""
    _check_keys("", data, StreamDefinition)
    definition = StreamDefinition(
        name=_converted("name", data.get("name", "stream"), str),
        checkpoint=_converted("checkpoint", data.get("checkpoint", ""), str),
        sources={name: _source(name, table) for name, table in _tables(data, "sources")},
        queries={name: _query(name, sql) for name, sql in _table(data, "queries").items()},
        sinks={name: _sink(name, table) for name, table in _tables(data, "sinks")},
    )
    _check_references(definition)
    folder = checkpoint or definition.checkpoint or f"{definition.name}.checkpoint"
    return msgspec.structs.replace(definition, checkpoint=folder)


# Sources, sinks and queries.


def _source(name: str, table: Any) -> SourceDefinition:
    where = f"sources.{name}"
    source = _struct(where, table, SourceDefinition)
    source = msgspec.structs.replace(source, topic=source.topic or name)
    with _ErrorPrefix(where):
        _check_topic("topic", source.topic)
        if source.rejects:
            _check_topic("rejects", source.rejects)
        if source.rejects and not source.schema:
            raise ConfigError("rejects requires a schema")
        if source.rejects == source.topic:
            raise ConfigError("rejects must not be the source's own topic")
        if source.max_messages < 1:
            raise ConfigError(f"max_messages must be at least 1, not {source.max_messages}")
        source.event_time  # noqa: B018 (raises)
    return source


def _sink(name: str, table: Any) -> SinkDefinition:
    where = f"sinks.{name}"
    sink = _struct(where, table, SinkDefinition)
    with _ErrorPrefix(where):
        _check_word("format", sink.format, FORMATS)
        _check_word("mode", sink.mode, MODES)
        if bool(sink.topic) == bool(sink.path):
            raise ConfigError("exactly one of topic and path is required")
        if sink.topic:
            _check_topic("topic", sink.topic)
            _refuse_given(table, ("format", "partition_by"), "are for files")
        else:
            _refuse_given(table, ("nsqd", "lookupd"), "are for topics")
        if sink.path and sink.mode != "append":
            raise ConfigError(f"mode {sink.mode!r} requires a topic: files can only be appended to")
        sink.interval  # noqa: B018 (raises)
    return msgspec.structs.replace(sink, query=sink.query or name)


def _query(name: str, sql: Any) -> str:
    text: str = _converted(f"queries.{name}", sql, str).strip().removesuffix(";").rstrip()
    if not text:
        raise ConfigError(f"queries.{name}: the SQL is empty")
    return text


def _check_topic(key: str, topic: str) -> None:
    if not names.is_valid(topic):
        raise ConfigError(f"{key} {topic!r} is not a valid name")


def _check_word(key: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ConfigError(f"{key} must be {', '.join(known[:-1])} or {known[-1]}, not {word!r}")


def _interval(key: str, text: str) -> str:
    """Parse an interval such as `10 minutes` (Spark) or `10m` (Go)."""
    if _INTERVAL.fullmatch(text):
        return text
    try:
        return f"{parse_duration(text) // 1_000_000} milliseconds"
    except ValueError:
        raise ConfigError(f"{key} must be like '10 minutes' or '10m', not {text!r}") from None


# The definition as a whole.


def _check_references(definition: StreamDefinition) -> None:
    if not definition.sources:
        raise ConfigError("no source: add [sources.NAME]")
    for kind in ("sources", "queries"):
        for name in getattr(definition, kind):
            if not _IDENTIFIER.fullmatch(name):
                raise ConfigError(f"{kind}.{name}: not a valid SQL identifier")
    _check_unique(definition)
    known = (*definition.sources, *definition.queries)
    _check_topic("name", definition.name)
    for name, sink in definition.sinks.items():
        with _ErrorPrefix(f"sinks.{name}"):
            if not _SINK_NAME.fullmatch(name):
                raise ConfigError("the name may contain only A-Z, a-z, 0-9, _ and -")
            if sink.query not in known:
                hint = _hint(sink.query, known)
                raise ConfigError(f"no source or query {sink.query!r}{hint}")
            if not names.is_valid(channel_name(definition, name)):
                raise ConfigError(f"{channel_name(definition, name)!r} is too long for a channel")
            _check_no_loop(definition, sink)


def channel_name(definition: StreamDefinition, output: str) -> str:
    """The channel that records the progress of an output."""
    return f"{definition.name}.{output}"


def _check_no_loop(definition: StreamDefinition, sink: SinkDefinition) -> None:
    for source in definition.dependencies_of(sink.query).sources.values():
        nodes = (source.nsqd, source.lookupd)
        if sink.topic and sink.topic == source.topic and nodes == (sink.nsqd, sink.lookupd):
            raise ConfigError(f"the sink writes to its own source, topic {sink.topic}")


def _check_unique(definition: StreamDefinition) -> None:
    """Raises ConfigError if two names differ only in case: Spark ignores the case of names."""
    seen: dict[str, str] = {}
    for name in (*definition.sources, *definition.queries):
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise ConfigError(f"two sources or queries have the same name: {other} and {name}")
    # Sinks are also names of folders, and some file systems are not case-sensitive.
    folders = [name.lower() for name in definition.sinks]
    if len(set(folders)) < len(folders):
        raise ConfigError("two sinks have names that differ only in case")


# Decoding of tables.


def _tables(data: Mapping[str, Any], key: str) -> Iterable[tuple[str, Any]]:
    return _table(data, key).items()


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{key} must be a table, [{key}]")
    return table


def _struct(where: str, table: Any, kind: type[T]) -> T:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, [{where}]")
    _check_keys(where, table, kind)
    struct: T = _converted(where, table, kind)
    return struct


def _converted(where: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as failure:
        text, _, place = str(failure).partition(" - at `$")
        key = place.rstrip("`").lstrip(".")
        text = text[:1].lower() + text[1:].replace("`", "")
        raise ConfigError(f"{where}: {f'{key}: ' if key else ''}{text}") from None


def _check_keys(where: str, table: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    known = kind.__struct_encode_fields__
    for key in table:
        if key not in known:
            prefix = f"{where}: " if where else ""
            raise ConfigError(f"{prefix}unknown key {key!r}{_hint(key, known)}")


def _refuse_given(table: Mapping[str, Any], keys: Iterable[str], why: str) -> None:
    for key in keys:
        if key in table:
            raise ConfigError(f"{key}: {' and '.join(keys)} {why}")


def _hint(word: str, known: Iterable[str]) -> str:
    """The most similar known word, or all of them."""
    words = list(known)
    near = get_close_matches(word, words, n=1)
    return f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(words)}"


class _ErrorPrefix:
    """Prefixes errors with the name of the table."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, failure: BaseException | None, _traceback: object) -> None:
        if isinstance(failure, ConfigError):
            raise ConfigError(f"{self._where}: {failure}") from None
