"""What has to be installed, and whether it fits. Nothing is imported to be looked at."""

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata

from penstock.tools.doctor.diagnosis import Diagnosis, fail, ok, warn

__all__ = ["checksums", "java", "judge_java", "judge_spark", "package", "python", "spark"]

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
JAVA_SECONDS = 20.0

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GET_SPARK = "pip install 'penstock[spark]'"


def python() -> Diagnosis:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        return fail(found, "install Python 3.11 or later")
    return ok(found)


def package(name: str) -> Diagnosis:
    """One that Penstock cannot do without."""
    version = _maybe_version(name)
    return ok(version) if version else fail("not installed", f"pip install {name}")


def checksums() -> Diagnosis:
    """Without its compiled half, every stored byte is summed up in Python."""
    version = _maybe_version("google-crc32c")
    if version is None:
        return package("google-crc32c")
    import google_crc32c  # noqa: PLC0415 (nsqd would)

    if google_crc32c.implementation != "c":
        return warn(f"{version}, without its C code", "install a wheel made for this system")
    return ok(version)


def spark() -> Diagnosis:
    versions = {name: _maybe_version(name) for name in ("pyspark", "pyarrow", "pandas", "numpy")}
    return judge_spark(versions, _spark_wanted())


def judge_spark(versions: dict[str, str | None], wanted: str) -> Diagnosis:
    """`wanted` is how the version of pyspark that we know begins."""
    pyspark = versions["pyspark"]
    if pyspark is None:
        return ok("not installed", f"if you want it: {_GET_SPARK}")
    if not f"{pyspark}.".startswith(f"{wanted}."):
        return warn(f"pyspark {pyspark}, not {wanted}", _GET_SPARK)
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return warn(f"pyspark {pyspark} without {', '.join(missing)}", _GET_SPARK)
    if int((versions["pandas"] or "").partition(".")[0]) >= 3:
        return warn(f"pyspark {pyspark} with pandas {versions['pandas']}", "pip install 'pandas<3'")
    return ok(f"pyspark {pyspark}")


def java() -> Diagnosis:
    if _maybe_version("pyspark") is None:
        return ok("not looked for", "only Spark needs it")
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    if program is None:
        return judge_java(None, "no java on the PATH")
    try:
        said = subprocess.run(  # noqa: S603 (what Spark would start)
            [program, "-version"], capture_output=True, timeout=JAVA_SECONDS, check=False
        ).stderr.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return judge_java(None, f"{program} does not run")
    match = _JAVA_VERSION.search(said)
    return judge_java(int(match[1]) if match else None, program)


def judge_java(major: int | None, where: str) -> Diagnosis:
    hint = f"Spark needs Java {JAVA_MIN} or later: install one, or set JAVA_HOME"
    if major is None:
        return warn(where, hint)
    found = f"{major}, {where}"
    return ok(found) if major >= JAVA_MIN else warn(found, hint)


def _spark_wanted() -> str:
    """As our own package says."""
    for requirement in metadata.requires("penstock") or ():
        if match := re.match(r"pyspark==([\d.]+)\.\*", requirement):
            return match[1]
    return ""


def _maybe_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
