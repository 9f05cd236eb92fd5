"""The Spark of tests/spark: there is one Java for all folders."""

from tests.spark.conftest import spark

__all__ = ["spark"]
