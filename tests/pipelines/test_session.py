"""Spark sessions of commands: started by them, or already running."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.common.errors import ConfigError
from penstock.pipelines.running import Stop
from penstock.pipelines.session import SparkSettings, configuration, java_program, spark_session


def test_a_running_session_is_used_and_left_running(spark: SparkSession) -> None:
    settings = SparkSettings(conf={"spark.sql.shuffle.partitions": "3"})
    with spark_session(settings, Stop()) as session:
        assert spark.sparkContext is session.sparkContext
        assert "UTC" == session.conf.get("spark.sql.session.timeZone")
        assert "3" == session.conf.get("spark.sql.shuffle.partitions")
        session.conf.set("spark.sql.shuffle.partitions", "1")

    assert 3 == spark.range(3).count()


def test_local_settings_are_not_applied_to_a_cluster() -> None:
    local = configuration(SparkSettings())
    cluster = configuration(SparkSettings(master="spark://10.0.0.1:7077"))

    assert {"spark.ui.enabled", "spark.driver.host"} <= local.keys()
    assert not {"spark.ui.enabled", "spark.driver.host"} & cluster.keys()
    assert "spark://10.0.0.1:7077" == cluster["spark.master"]


def test_user_settings_override_defaults() -> None:
    settings = SparkSettings(conf={"spark.ui.enabled": "true"})

    assert "true" == configuration(settings)["spark.ui.enabled"]


def test_a_missing_java_is_an_error_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="requires Java 17 or later, but no java was found"):
        java_program({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"JAVA_HOME .* has no bin/java"):
        java_program({"JAVA_HOME": str(tmp_path)})
