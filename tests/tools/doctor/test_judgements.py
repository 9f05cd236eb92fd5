"""Which values are ok, which are a warning, and which are a failure."""

from datetime import UTC, datetime

import pytest

from penstock.tools.doctor.diagnosis import Diagnosis
from penstock.tools.doctor.disk import judge_file_system, judge_free_space, judge_fsync
from penstock.tools.doctor.machine import (
    judge_clock,
    judge_java,
    judge_memory,
    judge_open_files,
    judge_spark,
)

GIB = 1 << 30
SPARK: dict[str, str | None] = {
    "pyspark": "4.3.1",
    "pyarrow": "20.0",
    "pandas": "2.3.1",
    "numpy": "2.0",
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("diagnosis", "grade", "found"),
    [
        (judge_java(17, "/bin/java"), "ok", "17, /bin/java"),
        (judge_java(11, "/bin/java"), "warn", "11, /bin/java"),
        (judge_java(None, "no java on the PATH"), "warn", "no java on the PATH"),
        (judge_spark(SPARK, "4.3"), "ok", "pyspark 4.3.1"),
        (judge_spark(SPARK | {"pyspark": None}, "4.3"), "ok", "not installed"),
        (judge_spark(SPARK | {"pyspark": "4.30.0"}, "4.3"), "warn", "pyspark 4.30.0, not 4.3"),
        (judge_spark(SPARK | {"pyarrow": None}, "4.3"), "warn", "pyspark 4.3.1 without pyarrow"),
        (
            judge_spark(SPARK | {"pandas": "3.0.1"}, "4.3"),
            "warn",
            "pyspark 4.3.1 with pandas 3.0.1",
        ),
        (judge_file_system("ext4", "/"), "ok", "ext4 at /"),
        (judge_file_system("tmpfs", "/tmp"), "warn", "tmpfs at /tmp"),
        (judge_file_system("nfs4", "/mnt"), "warn", "nfs4 at /mnt"),
        (judge_file_system("fuse.sshfs", "/mnt"), "warn", "fuse.sshfs at /mnt"),
        (judge_file_system("overlay", "/"), "warn", "overlay at /"),
        (judge_free_space(50 * GIB, 100 * GIB), "ok", "50.0 GiB of 100.0 GiB"),
        (judge_free_space(GIB, 100 * GIB), "warn", "1.0 GiB of 100.0 GiB"),
        (judge_free_space(0, 100 * GIB), "FAIL", "0.0 GiB of 100.0 GiB"),
        (judge_fsync(0.0012), "ok", "1.2 ms"),
        (judge_fsync(0.1), "warn", "100.0 ms"),
        (judge_open_files(-1), "ok", "no limit"),
        (judge_open_files(65_536), "ok", "65,536: enough for 65,216 connections"),
        (judge_open_files(1024), "warn", "1,024: enough for 704 connections"),
        (judge_open_files(256), "FAIL", "256: enough for 0 connections"),
        (judge_memory(4 * GIB, 8 * GIB, None), "ok", "4,096 MiB available of 8,192 MiB"),
        (
            judge_memory(4 * GIB, 8 * GIB, GIB // 4),
            "warn",
            "4,096 MiB available of 8,192 MiB, limited to 256 MiB",
        ),
        (judge_clock(NOW, is_synchronised=True), "ok", "2026-01-01 00:00:00 UTC, synchronised"),
        (
            judge_clock(NOW, is_synchronised=False),
            "warn",
            "2026-01-01 00:00:00 UTC, not synchronised",
        ),
        (
            judge_clock(datetime(1970, 1, 1, tzinfo=UTC), is_synchronised=True),
            "FAIL",
            "1970-01-01 00:00:00 UTC",
        ),
    ],
)
def test_a_value_is_ok_a_warning_or_a_failure(diagnosis: Diagnosis, grade: str, found: str) -> None:
    assert (grade, found) == (diagnosis.grade, diagnosis.found)
    if diagnosis.grade != "ok":
        assert diagnosis.hint, "what can be done about it?"
