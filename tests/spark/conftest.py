"""One Spark for all tests of this folder: starting it takes longer than most of them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.testing.nsqd import NsqdProcess, run_nsqd

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is in this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with one core, no web page, and all its files in a temporary folder."""
    # Or Spark's workers take the first python3 of the PATH, which may be another version.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[1]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")  # compiling pays for many rows only
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def nsqd() -> Iterator[NsqdProcess]:
    """An nsqd that keeps what has been finished."""
    with run_nsqd("--node-id=1", "--retention-time=1h") as running:
        yield running


@pytest.fixture
def other_nsqd() -> Iterator[NsqdProcess]:
    """Another node."""
    with run_nsqd("--node-id=2", "--retention-time=1h") as running:
        yield running
