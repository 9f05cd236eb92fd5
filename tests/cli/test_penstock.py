"""The `penstock` command leads to its commands, and tells what is wrong in one line."""

import subprocess
import sys

import pytest

from penstock import __version__
from penstock.cli.penstock import main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--help"])

    shown = capsys.readouterr().out
    assert "check" in shown
    assert "log" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--version"])
    assert f"penstock, version {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize("args", [["frobnicate"], ["check"], ["log", "dump", "--limit", "0", "x"]])
def test_a_wrong_command_line_exits_with_2(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(args)
    assert "Error: " in capsys.readouterr().err


def test_a_command_does_not_load_the_others() -> None:
    program = (
        "import sys; from penstock.cli.penstock import main; main(['--version']);"
        "print([name for name in sys.modules if name.startswith('penstock.log')])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert "[]" == shown.splitlines()[-1]
