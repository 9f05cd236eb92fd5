"""Spark for tests: one core, this Python, no web UI, no log output."""

import os
import sys

from pyspark.sql import SparkSession

__all__ = ["INTERPRETED", "local_session"]

_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.log.level": "ERROR",
    # A busy machine may take longer than Spark's 15 s to start a Python worker.
    "spark.python.authenticate.socketTimeout": "120s",
}

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Code generation takes longer than it saves on small data."""


def local_session(name: str, conf: dict[str, str]) -> SparkSession:
    """Start a session."""
    # Otherwise Spark's workers use the first python3 of the PATH, which may be another version.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").appName(f"penstock {name}")
    return builder.config(map={**_LOCAL, **conf}).getOrCreate()
