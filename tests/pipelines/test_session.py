"""Spark as our commands start it: with our defaults, or as somebody else has started it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.common.errors import ConfigError
from penstock.pipelines.running import Stop
from penstock.pipelines.session import SparkSettings, configuration, java_program, spark_session


def test_a_spark_that_runs_is_used_and_left_running(spark: SparkSession) -> None:
    settings = SparkSettings(conf={"spark.sql.shuffle.partitions": "3"})
    with spark_session(settings, Stop()) as session:
        assert spark.sparkContext is session.sparkContext
        assert "UTC" == session.conf.get("spark.sql.session.timeZone")
        assert "3" == session.conf.get("spark.sql.shuffle.partitions")
        session.conf.set("spark.sql.shuffle.partitions", "1")

    assert 3 == spark.range(3).count()


def test_a_cluster_is_told_nothing_that_is_meant_for_one_machine() -> None:
    local = configuration(SparkSettings())
    cluster = configuration(SparkSettings(master="spark://10.0.0.1:7077"))

    assert {"spark.ui.enabled", "spark.driver.host"} <= local.keys()
    assert not {"spark.ui.enabled", "spark.driver.host"} & cluster.keys()
    assert "spark://10.0.0.1:7077" == cluster["spark.master"]


def test_what_the_user_sets_wins() -> None:
    settings = SparkSettings(conf={"spark.ui.enabled": "true"})

    assert "true" == configuration(settings)["spark.ui.enabled"]


def test_no_java_is_told_with_the_way_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs Java 17 or later, and there is none: install"):
        java_program({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"JAVA_HOME .* has no bin/java"):
        java_program({"JAVA_HOME": str(tmp_path)})
