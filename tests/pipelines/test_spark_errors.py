"""Spark's exceptions as one line."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from penstock.common.errors import PipelineError
from penstock.pipelines.spark_errors import translate_spark_errors


def read_unreachable(spark: SparkSession) -> None:
    spark.read.format("nsq").options(nsqd="127.0.0.1:1", topic="x").load().count()


def stream_unreachable(spark: SparkSession) -> None:
    stream = spark.readStream.format("nsq").options(nsqd="127.0.0.1:1", topic="x").load()
    stream.writeStream.format("noop").start().awaitTermination()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (read_unreachable, "http://127.0.0.1:1/topics/log: Connection refused"),
        (stream_unreachable, "http://127.0.0.1:1/topics/log: Connection refused"),
        (lambda spark: spark.sql("selec 1"), "Syntax error at or near 'selec'. (line 1, pos 0)"),
        (lambda spark: spark.read.parquet("/no/where"), "Path does not exist: file:/no/where."),
        (lambda spark: spark.sql("select raise_error('oh')").collect(), "oh"),
    ],
)
def test_an_exception_of_spark_becomes_one_line(
    spark: SparkSession, work: Callable[[SparkSession], object], words: str
) -> None:
    with pytest.raises(PipelineError) as failure, translate_spark_errors():
        work(spark)

    assert words == str(failure.value)
