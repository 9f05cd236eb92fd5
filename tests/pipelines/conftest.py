"""The Spark of tests/spark, and its nsqds: there is one Java for both folders."""

from pathlib import Path

import pytest
from tests.spark.conftest import nsqd, other_nsqd, spark

__all__ = ["nsqd", "other_nsqd", "spark"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As in tests/spark."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
