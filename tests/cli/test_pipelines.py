"""penstock archive, replay and report as programs.

tests/pipelines tests successful runs of the commands; one test here starts Spark as they do.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe, started

from penstock.pipelines.lake import Lake
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

spark = pytest.mark.spark


def at(nsqd: NsqdProcess) -> tuple[str, str]:
    return "--nsqd-http-address", nsqd.http_address


@spark
def test_errors_are_one_line_and_found_before_spark_is_started(
    nsqd: NsqdProcess, tmp_path: Path
) -> None:
    nsqd.publish("orders", b"one")
    photos, lake = tmp_path / "photos", tmp_path / "lake"
    photos.mkdir()
    (photos / "holiday.jpg").touch()
    empty = Lake.create(tmp_path / "empty").path
    no_java = {"JAVA_HOME": "", "PATH": str(tmp_path)}
    cases = {
        ("archive", "ordres", "--lake", str(lake), *at(nsqd)): "topic ordres does not exist",
        ("archive", "orders", "--lake", str(photos), *at(nsqd)): "is not a Penstock lake",
        ("archive", "orders", "--lake", str(lake), *at(nsqd)): "Spark requires Java 17 or later",
        ("replay", "orders", "again", "--lake", str(lake), *at(nsqd)): "is not a Penstock lake",
        ("replay", "ordres", "again", "--from-history", *at(nsqd)): "topic ordres does not exist",
        ("report", "--lake", str(photos)): "is not a Penstock lake",
        ("report", "--lake", str(empty)): "has no topics",
        ("report", "--lake", str(empty), "--topic", "orders"): "topic orders is not in",
    }
    for args, words in cases.items():
        done = in_pipe("penstock", *args, env=no_java)

        assert 1 == done.returncode
        assert words in done.stderr
        assert 1 == done.stderr.count("\n"), done.stderr
    assert not lake.exists()
    assert ["holiday.jpg"] == [each.name for each in photos.iterdir()]


def test_the_error_without_spark_names_the_extra(tmp_path: Path) -> None:
    """Simulates a missing pyspark."""
    hide = "import sys; sys.modules['pyspark'] = None; from penstock.cli.penstock import main; "
    done = subprocess.run(
        [sys.executable, "-c", hide + "sys.exit(main(['archive', 'orders', '--lake', 'x']))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert 1 == done.returncode
    assert "penstock: pyspark is not installed: pip install 'penstock[spark]'\n" == done.stderr


@spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_archive_runs_until_a_signal_and_hides_sparks_output(
    nsqd: NsqdProcess, tmp_path: Path
) -> None:
    nsqd.publish("sales", b"one", b"two")
    committed = tmp_path / "lake" / "_topics" / "topic=sales" / "committed.json"
    args = ("archive", "sales", "--lake", str(tmp_path / "lake"), *at(nsqd), "--trigger", "1s")
    with started("penstock", *args, "--master", "local[1]") as archive:
        wait_until(committed.exists, "a batch", seconds=180)
        os.kill(archive.pid, signal.SIGINT)
        out, err = archive.communicate(timeout=120)

    assert 0 == archive.returncode, err
    assert f"sales: 2 messages archived; {tmp_path / 'lake'} has 2\n" == out
    assert all(line.startswith("sales: ") for line in err.splitlines()), err


def processes_with(mark: str) -> list[str]:
    """Command lines of all processes whose environment has this variable."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


ARCHIVE = ("archive", "orders", "--lake", "lake")
STREAM = ("stream", "--source", "orders=orders", "--sql", "SELECT * FROM orders", "--to-topic", "t")
REPLAY = ("replay", "orders", "again", "--from-history", "--yes")
REPORT = ("report", "--lake", "old")


@spark
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("args", "point", "number", "code", "words"),
    [
        (ARCHIVE, "the scripts run", signal.SIGINT, 0, ""),
        (STREAM, "Java runs", signal.SIGTERM, 0, ""),
        (REPORT, "Java accepts connections", signal.SIGINT, 1, "penstock: interrupted\n"),
        (REPLAY, "Spark starts", signal.SIGTERM, 1, "penstock: interrupted\n"),
        (STREAM, "rows are published", signal.SIGINT, 0, ""),
    ],
)
def test_a_signal_ends_the_command_and_its_java_at_any_point_of_its_start(
    nsqd: NsqdProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    point: str,
    number: int,
    code: int,
    words: str,
) -> None:
    nsqd.publish("orders", b"one")
    Lake.create(tmp_path / "old")
    (tmp_path / "old" / "topic=orders" / "date=2026-11-15" / "hour=08").mkdir(parents=True)
    mark = f"PENSTOCK_TEST={tmp_path}"
    for name, value in {"PENSTOCK_TEST": tmp_path, "TMPDIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)

    def topics() -> list[str]:
        stats = nsqd.http("GET", "/stats?format=json").json()
        return [topic["topic_name"] for topic in stats["topics"]]

    points = {
        "the scripts run": lambda: len(processes_with(mark)) > 1,
        "Java runs": lambda: any("deploy.SparkSubmit" in each for each in processes_with(mark)),
        "Java accepts connections": lambda: list(tmp_path.glob("*/address")),
        "Spark starts": lambda: list(tmp_path.glob("blockmgr-*")),
        "rows are published": lambda: "t" in topics(),
    }
    more = () if args is REPORT else at(nsqd)
    local = ("--master", "local[1]", "--spark-conf", f"spark.local.dir={tmp_path}")
    with started("penstock", *args, *more, *local) as command:
        wait_until(points[point], point, seconds=180)
        os.kill(command.pid, number)
        _, err = command.communicate(timeout=60)

    progress = [line for line in err.splitlines(keepends=True) if line.startswith("out: ")]
    assert (code, words) == (command.returncode, err.replace("".join(progress), "")), err
    assert "again" not in topics()
    wait_until(lambda: not processes_with(mark), "all processes to end", seconds=60)
