"""The wheel has everything, and works where there is no repository."""

import configparser
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.testing.waiting import wait_until

ROOT = Path(__file__).parents[1]
SECONDS = 200.0

SPARK_READ = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
table = spark.read.format("nsq").option("nsqd", sys.argv[1]).option("topic", "orders").load()
print(sorted(bytes(row.body) for row in table.collect()))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, and the wheel that is made from it: so the archive is whole."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert 0 == built.returncode, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel; what it depends on is lent from ours, in
    which Penstock itself is not found: that takes a .pth file of ours, which it does not read."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    bin_folder = folder / "bin"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(bin_folder / "python"),
        "install",
        "--quiet",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (folder / site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_folder


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somewhere else, with nothing that leads back to the repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def run(program: Path, *args: str) -> str:
    done = subprocess.run(
        [str(program), *args], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@contextmanager
def up(installed: Path, folder: Path) -> Iterator[dict[str, str]]:
    """A cluster of the installed wheel; its addresses, by what they are of."""
    ports = [f"--{daemon}-port=0" for daemon in ("nsqd", "lookupd", "admin")]
    flags = [f"--data-path={folder / 'data'}", "--retention-time=1h"]
    command = [str(installed / "penstock"), "up", *ports, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            said = ""
            while "Ctrl-C stops it." not in said:
                line = cluster.stdout.readline()
                assert line, said
                said += line
            (nsqd,) = re.findall(r"nsqd-1 +tcp (\S+) +http (\S+)", said)
            (browse,) = re.findall(r"browse +(\S+)", said)
            yield {"tcp": nsqd[0], "http": nsqd[1], "browse": browse}
            cluster.send_signal(signal.SIGINT)
            assert 0 == cluster.wait(SECONDS)
        finally:
            cluster.kill()


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        content: bytes = answer.read()
        return content


def files_of(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_source(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert set() == files_of(ROOT / "src") - names
    assert {"penstock/py.typed", "pyspark_nsq/py.typed"} <= names
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert {"LICENSE", "htmx.LICENSE", "uplot.LICENSE"} == licences


def test_the_source_archive_has_what_a_developer_needs(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}

    assert {"Makefile", "constraints.txt", "docs", "scripts", "src", "tests"} <= tops


def test_the_version_has_one_home(wheel: Path) -> None:
    assert wheel.name.startswith(f"penstock-{penstock.__version__}-")
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_program_of_ours_is_installed(wheel: Path, installed: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        entry_points = configparser.ConfigParser()
        entry_points.read_string(archive.read(name).decode())
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

    assert scripts == dict(entry_points["console_scripts"])
    assert [] == [script for script in scripts if not os.access(installed / script, os.X_OK)]


def test_a_cluster_runs_without_the_repository(installed: Path, outside: Path) -> None:
    where = run(installed / "python", "-c", "import penstock; print(penstock.__file__)")
    assert Path(where.strip()).is_relative_to(installed.parent)
    with up(installed, outside) as cluster:
        tcp = f"--nsqd-tcp-address={cluster['tcp']}"
        http = f"--nsqd-http-address={cluster['http']}"
        run(installed / "penstock", "pub", "orders", "one", "two", tcp)
        assert "one\ntwo\n" == run(installed / "penstock", "sub", "orders", "c", "-n", "2", tcp)
        assert "one\ntwo\n" == run(installed / "penstock", "history", "orders", "--body", http)
        wait_until(lambda: b"orders" in fetch(cluster["browse"]), "nsqadmin to know the topic")


@pytest.mark.spark
@pytest.mark.timeout(300)  # Spark starts for it alone, maybe beside another one
def test_spark_reads_without_the_repository(installed: Path, outside: Path) -> None:
    (outside / "read.py").write_text(SPARK_READ)
    with up(installed, outside) as cluster:
        run(
            installed / "penstock",
            "pub",
            "orders",
            "one",
            "two",
            f"--nsqd-tcp-address={cluster['tcp']}",
        )
        assert "[b'one', b'two']\n" == run(installed / "python", "read.py", cluster["http"])
