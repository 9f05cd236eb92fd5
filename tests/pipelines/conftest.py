"""The Spark session and nsqds of tests/spark; both folders share one Java."""

from pathlib import Path

import pytest
from tests.spark.conftest import nsqd, other_nsqd, spark

__all__ = ["nsqd", "other_nsqd", "spark"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, as in tests/spark."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
