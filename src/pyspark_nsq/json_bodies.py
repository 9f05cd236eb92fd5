"""Bodies that are JSON, as columns.

clicks = spark.readStream.format("nsq").options(nsqd="127.0.0.1:4151", topic="clicks").load()
from_json_body(clicks, "user string, at timestamp").select("timestamp", "value.*")
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

__all__ = ["from_json_body", "infer_json_schema"]

SAMPLE_ROWS = 1000


def from_json_body(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """The same rows with a column `value`, of this schema, in the place of `body`.

    A field that is missing in a body is null there; where a body is no JSON, all of them are.
    """
    # Without asking for the columns that there are: a declarative pipeline may not be asked yet.
    value = sql.from_json(sql.col("body").cast("string"), schema)
    return frame.withColumn("value", value).drop("body")


def infer_json_schema(table: DataFrame, rows: int = SAMPLE_ROWS) -> StructType:
    """The schema that Spark finds in so many bodies of a table (`spark.read`, not `readStream`).

    Read the part of the history that is typical: `startingTimestamp`, `endingOffsets`.
    """
    sample = table.limit(rows).select(sql.col("body").cast("string"))
    return table.sparkSession.read.json(sample).schema
