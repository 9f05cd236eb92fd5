"""penstock archive, replay and report as programs: what is wrong is told at once, in one line.

What they do when nothing is wrong is in tests/pipeline; one test here starts Spark as they do.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.programs import in_pipe, started

from penstock.pipeline.lake import Lake
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.waiting import wait_until

spark = pytest.mark.spark


def at(nsqd: NsqdProcess) -> tuple[str, str]:
    return "--nsqd-http-address", nsqd.http_address


@spark
def test_what_is_wrong_is_told_in_one_line_before_spark_is_started(
    nsqd: NsqdProcess, tmp_path: Path
) -> None:
    nsqd.publish("orders", b"one")
    photos, lake = tmp_path / "photos", tmp_path / "lake"
    photos.mkdir()
    (photos / "holiday.jpg").touch()
    empty = Lake.create(tmp_path / "empty").path
    no_java = {"JAVA_HOME": "", "PATH": str(tmp_path)}
    cases = {
        ("archive", "ordres", "--lake", str(lake), *at(nsqd)): "there is no topic ordres",
        ("archive", "orders", "--lake", str(photos), *at(nsqd)): "is no lake",
        ("archive", "orders", "--lake", str(lake), *at(nsqd)): "Spark needs Java 17 or later",
        ("replay", "orders", "again", "--lake", str(lake), *at(nsqd)): "is no lake",
        ("replay", "ordres", "again", "--from-history", *at(nsqd)): "there is no topic ordres",
        ("report", "--lake", str(photos)): "is no lake",
        ("report", "--lake", str(empty)): "has no topic yet",
        ("report", "--lake", str(empty), "--topic", "orders"): "there is no topic orders in",
    }
    for args, words in cases.items():
        done = in_pipe("penstock", *args, env=no_java)

        assert 1 == done.returncode
        assert words in done.stderr
        assert 1 == done.stderr.count("\n"), done.stderr
    assert not lake.exists()
    assert ["holiday.jpg"] == [each.name for each in photos.iterdir()]


def test_without_spark_the_extra_is_named(tmp_path: Path) -> None:
    """As if it were not installed: nothing but what Penstock itself needs can be found."""
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
    assert "penstock: there is no pyspark here: pip install 'penstock[spark]'\n" == done.stderr


@spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_archive_goes_on_until_it_is_left_and_nothing_of_spark_is_to_be_seen(
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
