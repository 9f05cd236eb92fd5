"""Bodies that are to be JSON of a certain schema, and what does not fit it.

A body fits if it is a JSON object whose fields have the schema's types; one that is missing is
null. A field that is NOT NULL has to be there. Fields that the schema does not have are not looked
at.
"""

from functools import reduce
from operator import or_

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from penstock.common.errors import ConfigError
from penstock.pipelines.failures import in_words

__all__ = ["is_misfit", "schema_of", "with_value"]

# Where Spark puts the text of what it cannot parse.
_UNPARSED = "__unparsed"


def schema_of(ddl: str) -> StructType:
    """Raises ConfigError if it is none. Needs a Spark that runs."""
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as failure:
        raise ConfigError(f"{ddl!r} is no schema: {in_words(failure)}") from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"{ddl!r} is no schema: it has no fields")
    names = [field.name.lower() for field in schema.fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{ddl!r} is no schema: there are two fields {twice}")
    return schema


def with_value(messages: DataFrame, schema: StructType) -> DataFrame:
    """The same with the fields of the body in a struct `value` as well."""
    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    kind = StructType([*fields, StructField(_UNPARSED, StringType())])
    options = {"columnNameOfCorruptRecord": _UNPARSED}
    value = sql.from_json(sql.col("body").cast("string"), kind, options)
    return messages.withColumn("value", value)


def is_misfit(schema: StructType) -> Column:
    """Whether a body does not fit, of rows that `with_value` has made."""
    value = sql.col("value")
    required = [field.name for field in schema.fields if not field.nullable]
    missing = (value.getField(name).isNull() for name in required)
    return reduce(or_, missing, value.isNull() | value.getField(_UNPARSED).isNotNull())
