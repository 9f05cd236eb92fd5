"""The `penstock` command: help, completion, and errors in one line."""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest

from penstock import __version__
from penstock.cli.command_options import CommandWithExamples
from penstock.cli.penstock import cli, main
from penstock.testing.nsqd import NsqdProcess

EVERYDAY = ["doctor", "drain", "history", "import", "pub", "seek", "sub", "top", "up"]
ON_SPARK = ["archive", "replay", "report", "stream"]


def test_help_names_the_commands_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--help"])

    _, commands = capsys.readouterr().out.split("Commands:\n")
    assert sorted([*EVERYDAY, *ON_SPARK, "check", "cluster", "log"]) == [
        line.split()[0] for line in commands.splitlines()
    ]
    assert "..." not in commands


@pytest.mark.parametrize("name", EVERYDAY)
def test_the_help_of_a_command_has_examples_that_can_be_parsed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == main([name, "--help"])
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, CommandWithExamples)

    _, examples = capsys.readouterr().out.split("\nExamples:\n")
    assert command.examples == [line.strip() for line in examples.splitlines()]
    for example in command.examples:
        words = shlex.split(re.split(r" \| (?!penstock)", example)[0].split("| penstock ")[-1])
        args = words[words.index(name) + 1 :]
        if "--file" not in args:  # it would have to exist
            command.make_context(name, args)


def test_help_imports_neither_asyncio_nor_rich() -> None:
    program = (
        "import sys; from penstock.cli.penstock import main; main(['top', '--help']);"
        "print(sorted({'asyncio', 'rich', 'msgspec', 'penstock.nsqd'} & sys.modules.keys()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert "[]" == shown.splitlines()[-1]


def completed(words: str, *, shell: str = "bash", **env: str) -> list[str]:
    """The completions that a shell offers for the last of these words."""
    asked = {
        "_PENSTOCK_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    shown = subprocess.run(
        [sys.executable, "-m", "penstock.cli.penstock"],
        env={**os.environ, **asked, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == shown.stderr
    return shown.stdout.split()


def test_a_shell_can_complete_commands() -> None:
    assert ["plain,seek"] == completed("penstock se")
    assert ["plain", "seek"] == completed("penstock se", shell="zsh")[:2]


def test_a_shell_can_complete_names_of_topics_and_channels(nsqd: NsqdProcess) -> None:
    for topic, channel in (("orders", "billing"), ("orders", "audit"), ("clicks", "spark")):
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    env = {"PENSTOCK_NSQD_HTTP_ADDRESS": nsqd.http_address}

    assert ["plain,clicks", "plain,orders"] == completed("penstock sub ", **env)
    assert ["plain,orders"] == completed("penstock history or", **env)
    assert ["plain,audit", "plain,billing"] == completed("penstock seek orders ", **env)
    named = f"penstock history --nsqd-http-address {nsqd.http_address} cl"
    assert ["plain,clicks"] == completed(named)


def test_completion_is_empty_if_no_node_responds() -> None:
    assert [] == completed("penstock sub ", PENSTOCK_NSQD_HTTP_ADDRESS="127.0.0.1:1")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--version"])
    assert f"penstock, version {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize("args", [["frobnicate"], ["check"], ["log", "dump", "--limit", "0", "x"]])
def test_a_wrong_command_line_exits_with_2(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(args)
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help >/dev/full", "penstock: No space left on device"),
        ("--help >&-", "penstock: standard output is closed"),
        ("pub orders <&-", "Error: standard input is closed"),
    ],
)
def test_an_unusable_standard_file_is_reported_in_one_line(words: str, expected: str) -> None:
    shown = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m penstock.cli.penstock {words}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert shown.returncode in {1, 2}
    assert "Traceback" not in shown.stderr
    assert expected == shown.stderr.splitlines()[-1]


def test_a_command_does_not_load_the_others() -> None:
    program = (
        "import sys; from penstock.cli.penstock import main; main(['--version']);"
        "print([name for name in sys.modules if name.startswith('penstock.storage')])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert "[]" == shown.splitlines()[-1]
