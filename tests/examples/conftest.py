"""The Spark session of tests/spark; all folders share one Java."""

from tests.spark.conftest import spark

__all__ = ["spark"]
