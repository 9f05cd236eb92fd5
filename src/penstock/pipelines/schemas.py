"""Which schema the bodies of a topic are archived with: asked for, inferred, or the lake's.

A schema is what Spark calls one: `user string, total double`, in the command line or in a file, or
its JSON form in a file. What fits one, and what does not, is `json_columns`.
"""

import json
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from penstock.common.errors import ConfigError
from penstock.pipelines.json_columns import schema_of
from penstock.pipelines.lake import TopicFolder
from pyspark_nsq import infer_json_schema

__all__ = ["INFER", "parse_schema", "rejection_reason", "schema_for", "value_column"]

INFER = "infer"

# What Spark's own inference calls a body that is no JSON.
_NOT_JSON = "_corrupt_record"


def schema_for(topic: TopicFolder, wish: str, table: DataFrame) -> StructType | None:
    """The lake's, the wish, or none. `table` is what there is of the topic, to infer from.

    Raises ConfigError if the wish is no schema, or if the lake's is another one.
    """
    stored = topic.body_schema()
    known = StructType.fromJson(stored) if stored is not None else None
    if not wish or (wish == INFER and known is not None):
        return known
    wanted = _inferred(topic.name, table) if wish == INFER else parse_schema(wish)
    if known is not None:
        _check_extends(topic.name, known, wanted)
    return wanted


def parse_schema(text: str) -> StructType:
    """Of a file of that name if there is one, or of the text itself. Raises ConfigError."""
    content = text
    if Path(text).is_file():
        try:
            content = Path(text).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as failure:
            raise ConfigError(f"cannot read {text}: {failure}") from None
    if not content.startswith("{"):
        return schema_of(content)
    try:
        return StructType.fromJson(json.loads(content))
    except (ValueError, KeyError, TypeError) as failure:
        raise ConfigError(f"{text} is no schema as Spark writes one: {failure!r}") from None


def value_column(schema: StructType) -> Column:
    """`value` as the lake has it: the fields of the schema, and nothing else."""
    fields = (sql.col("value").getField(name).alias(name) for name in schema.names)
    return sql.struct(*fields).alias("value")


def rejection_reason() -> Column:
    """`reason`, in words, for a body that does not fit."""
    is_object = sql.from_json(sql.col("body").cast("string"), "map<string,string>").isNotNull()
    words = sql.when(is_object, "it does not fit the schema").otherwise("it is no JSON object")
    return words.alias("reason")


def _inferred(topic: str, table: DataFrame) -> StructType:
    found = infer_json_schema(table)
    fields = [field for field in found.fields if field.name != _NOT_JSON]
    if not fields:
        raise ConfigError(f"no schema can be inferred: the first messages of {topic} are no JSON")
    return StructType(fields)


def _check_extends(topic: str, known: StructType, wanted: StructType) -> None:
    """More fields are welcome: where there were none, they read as null."""
    kinds = {field.name: field.dataType for field in wanted.fields}
    for field in known.fields:
        if kinds.get(field.name) != field.dataType:
            raise ConfigError(
                f"the lake has {topic} with another schema: field {field.name} is"
                f" {field.dataType.simpleString()} there; fields can be added, and no more"
            )
