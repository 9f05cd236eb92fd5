"""A machine for the docs, its terminals, and its Spark."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.docs.machine import Machine, NoNamespacesError, new_machine
from tests.docs.pages import ROOT
from tests.docs.terminal import Terminal

from penstock.testing.waiting import wait_until

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
DESK = HERE / "spark_desk.py"

# Commands that need Spark go to the one that runs; all others are what they are.
PENSTOCK = """#!/bin/sh
case "$1" in
    archive | replay | stream | report) exec {python} -S {desk} ask {socket} penstock "$@" ;;
esac
exec {programs}/penstock "$@"
"""


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    try:
        with new_machine() as made:
            yield made
    except NoNamespacesError as reason:
        # Pages name the default ports, which may be in use here, and folders such as /var/lib.
        # Without others of our own, nothing may be started on them.
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of these tests is: `home` for the pages, which Java cannot leave again."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("home", "bin", "scratch"):
        (folder / name).mkdir()
    penstock = folder / "bin" / "penstock"
    names = {"python": sys.executable, "desk": DESK, "socket": folder / "desk"}
    penstock.write_text(PENSTOCK.format(programs=PROGRAMS, **names))
    penstock.chmod(penstock.stat().st_mode | stat.S_IXUSR)
    (folder / "bin" / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
    return folder


@pytest.fixture(scope="session")
def environment(ground: Path) -> dict[str, str]:
    """That of a user who has activated the environment that Penstock is installed in."""
    path = os.pathsep.join([str(ground / "bin"), str(PROGRAMS), os.environ["PATH"]])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return {
        **clean,
        "PATH": path,
        "HOME": str(ground / "home"),
        "CURL_HOME": str(ground / "bin"),  # what is answered by an error is an error
        "PYTHONUNBUFFERED": "1",
        "REPOSITORY": str(ROOT),
    }


@pytest.fixture(scope="session")
def desk(machine: Machine, ground: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """The command that asks the desk for something."""
    serve = [sys.executable, str(DESK), "serve", str(ground / "desk")]
    command = machine.inside("env", "--chdir", str(ground / "home"), *serve)
    with (
        (ground / "desk.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until((ground / "desk").exists, "Spark", seconds=240)
            yield [sys.executable, "-S", str(DESK), "ask", str(ground / "desk")]
        finally:
            process.kill()


@pytest.fixture
def terminal(machine: Machine, ground: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """In an empty folder."""
    _empty(ground / "home")
    with Terminal(machine, ground / "home", environment, ground / "scratch") as opened:
        yield opened


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        remove: Callable[[Path], object] = shutil.rmtree if entry.is_dir() else os.unlink
        remove(entry)
