"""Spark reads NSQ topics, and writes to them: `format("nsq")`.

    spark.readStream.format("nsq").option("lookupd", "127.0.0.1:4161").option("topic", "orders")

Spark finds `DefaultSource` by itself, because the package's name begins with `pyspark_`.
"""

from pyspark_nsq.json_bodies import from_json_body, infer_json_schema
from pyspark_nsq.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource", "from_json_body", "infer_json_schema"]
