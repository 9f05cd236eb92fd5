"""JSON bodies as columns.

clicks = spark.readStream.format("nsq").options(nsqd="127.0.0.1:4151", topic="clicks").load()
from_json_body(clicks, "user string, at timestamp").select("timestamp", "value.*")
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

__all__ = ["from_json_body", "infer_json_schema"]

SAMPLE_ROWS = 1000


def from_json_body(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """Replace the column `body` by a column `value` of this schema.

    Fields missing in a body are null; if a body is not JSON, all fields are null.
    """
    # Does not access `frame.columns`: a declarative pipeline cannot resolve them at this point.
    value = sql.from_json(sql.col("body").cast("string"), schema)
    return frame.withColumn("value", value).drop("body")


def infer_json_schema(table: DataFrame, rows: int = SAMPLE_ROWS) -> StructType:
    """Infer the schema from the first `rows` bodies of a table (`spark.read`, not `readStream`).

    Use `startingTimestamp` and `endingOffsets` to select typical messages.
    """
    sample = table.limit(rows).select(sql.col("body").cast("string"))
    return table.sparkSession.read.json(sample).schema
