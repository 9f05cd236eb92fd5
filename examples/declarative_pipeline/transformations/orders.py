"""From the topic `orders` to a table, and from there to the topic `orders.large`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq import from_json_body

spark = SparkSession.active()
nsqd = os.environ.get("PENSTOCK_NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


@dp.table
def orders() -> DataFrame:
    """All orders."""
    messages = (
        spark.readStream.format("nsq")
        .option("nsqd", nsqd)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = from_json_body(messages, "order_id string, customer string, amount double")
    return parsed.select("id", "timestamp", "value.*")


dp.create_sink("large_orders", "nsq", {"nsqd": nsqd, "topic": "orders.large"})


@dp.append_flow(target="large_orders")
def publish_large_orders() -> DataFrame:
    """Publish orders of 100 or more."""
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.selectExpr("to_json(struct(order_id, customer, amount)) AS body")
