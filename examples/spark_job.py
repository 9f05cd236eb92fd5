"""A Spark job: revenue by customer, from the topic `orders` to Parquet and the topic `revenue`.

python examples/spark_job.py revenue    # folder to write to; set NSQD_HTTP for another nsqd
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_nsq import from_json_body

NSQD = os.environ.get("NSQD_HTTP", "127.0.0.1:4151")


def revenue(spark: SparkSession, nsqd: str) -> DataFrame:
    """Sum all stored orders by customer. Bodies that are not JSON are ignored."""
    messages = spark.read.format("nsq").option("nsqd", nsqd).option("topic", "orders").load()
    orders = from_json_body(messages, "id bigint, customer string, amount double")
    by_customer = orders.where("value.customer is not null").groupBy("value.customer")
    return by_customer.agg(f.count("*").alias("orders"), f.sum("value.amount").alias("amount"))


def publish(table: DataFrame, nsqd: str, topic: str) -> None:
    """Publish each row as a JSON object."""
    bodies = table.selectExpr("to_json(struct(*)) as body")
    bodies.write.format("nsq").option("nsqd", nsqd).option("topic", topic).mode("append").save()


def main(folder: str, nsqd: str = NSQD) -> None:
    """Read the topic once, and write the result to both targets."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers use this Python
    spark = SparkSession.builder.appName("revenue").getOrCreate()
    table = revenue(spark, nsqd).cache()
    table.write.mode("overwrite").parquet(folder)
    publish(table, nsqd, "revenue")
    table.orderBy("customer").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
