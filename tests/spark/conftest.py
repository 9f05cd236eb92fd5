"""One Spark session for all tests of this folder, because starting it is slow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.local_session import INTERPRETED, local_session

from penstock.testing.nsqd import NsqdProcess, run_nsqd

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with its files in a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    folders = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = local_session("tests", {**INTERPRETED, **folders})
    yield session
    session.stop()


@pytest.fixture
def nsqd() -> Iterator[NsqdProcess]:
    """An nsqd that retains finished messages."""
    with run_nsqd("--node-id=1", "--retention-time=1h") as running:
        yield running


@pytest.fixture
def other_nsqd() -> Iterator[NsqdProcess]:
    """A second node."""
    with run_nsqd("--node-id=2", "--retention-time=1h") as running:
        yield running
