"""What every test shares: it leaves its logs sound, unless it damages them on purpose.

Also how tests are dealt out to several workers, and how Java is started for all of them.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from tests.scheduling import ByChain, longest_chains_first
from tests.seeds import VARIABLE, run_seed
from xdist.remote import Producer

from penstock.testing.fixtures import (
    damaged_on_purpose,
    data_path,
    logs_stay_sound,
    memory_files,
)

__all__ = ["damaged_on_purpose", "data_path", "logs_stay_sound", "memory_files"]

# No deadline, since a busy machine may be slow at any moment; the test's timeout catches a hang.
# Hypothesis derives its choices from the test's source where it finds itself in CI: not here.
settings.register_profile("penstock", deadline=None, print_blob=True, derandomize=False)
settings.load_profile("penstock")

# A Java that a test starts lives for seconds: what its better compiler and its collector's threads
# cost does not come back. Spark hands these on. Where there is no such archive, or none for this
# Java, it does without, silently.
SHORT_LIVED_JAVA = " ".join(
    (
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        f"-XX:SharedArchiveFile={Path(sys.prefix) / 'spark-classes.jsa'}",
        "-Xlog:disable",
    )
)
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = SHORT_LIVED_JAVA


def pytest_report_header() -> str:
    return f"seed: {run_seed()} ({VARIABLE}={run_seed()} repeats the random choices of this run)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_chains_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByChain | None:
    return ByChain(config, log) if config.getoption("dist") == "loadgroup" else None
