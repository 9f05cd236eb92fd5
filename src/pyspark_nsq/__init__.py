"""Spark data source for NSQ topics: `format("nsq")`.

    spark.readStream.format("nsq").option("lookupd", "127.0.0.1:4161").option("topic", "orders")

Spark finds `DefaultSource` without registration, because the name of the package begins with
`pyspark_`.
"""

from pyspark_nsq.json_bodies import from_json_body, infer_json_schema
from pyspark_nsq.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource", "from_json_body", "infer_json_schema"]
