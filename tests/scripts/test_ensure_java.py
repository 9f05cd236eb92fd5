"""The Java that Spark gets: found by asking each candidate for its version."""

import os
import subprocess
from pathlib import Path

import pytest

ENSURE_JAVA = Path(__file__).parents[2] / "scripts" / "ensure-java"


def java_home(folder: Path, version_line: str) -> Path:
    """A folder that looks like the home of a Java of some version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    java.chmod(0o755)
    return folder


def ensure_java(java_home: Path) -> str:
    environment = os.environ | {"JAVA_HOME": str(java_home)}
    return subprocess.check_output([ENSURE_JAVA], env=environment, text=True, timeout=60).strip()


@pytest.mark.parametrize(
    "version_line",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'openjdk version "21" 2023-09-19',
        'java version "25.0.1" 2025-10-21 LTS',
    ],
)
def test_the_java_that_is_set_is_used(tmp_path: Path, version_line: str) -> None:
    home = java_home(tmp_path, version_line)

    assert str(home) == ensure_java(home)


@pytest.mark.parametrize(
    "version_line",
    ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_292"', "not a java at all"],
)
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, version_line: str) -> None:
    home = java_home(tmp_path, version_line)

    assert str(home) != ensure_java(home)
