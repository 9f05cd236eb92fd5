"""Fixtures that run the commands of the docs: a machine, a terminal, and a Spark server."""

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

# Commands that need Spark use the running Spark server; all others are unchanged.
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
        # Pages use the default ports, which may be in use here, and folders such as /var/lib.
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of these tests. Pages run in its subfolder `home`, because Java cannot change its
    folder.
    """
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
    """The environment variables of a user with an activated virtual environment."""
    path = os.pathsep.join([str(ground / "bin"), str(PROGRAMS), os.environ["PATH"]])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return {
        **clean,
        "PATH": path,
        "HOME": str(ground / "home"),
        "CURL_HOME": str(ground / "bin"),  # its .curlrc makes curl fail on HTTP errors
        "PYTHONUNBUFFERED": "1",
        "REPOSITORY": str(ROOT),
    }


@pytest.fixture(scope="session")
def desk(machine: Machine, ground: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """The command that sends a request to the Spark server."""
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
    """A terminal in an empty folder."""
    _empty(ground / "home")
    with Terminal(machine, ground / "home", environment, ground / "scratch") as opened:
        yield opened


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        remove: Callable[[Path], object] = shutil.rmtree if entry.is_dir() else os.unlink
        remove(entry)
