"""Flags in the docs exist in the program's --help, and make targets in the Makefile."""

import re
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import click
import pytest
from tests.docs.pages import ROOT, Block, Command, blocks, commands, pages

from penstock.cli.penstock import cli

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
_FLAG = re.compile(r"(?<![\w-])--?([a-z][a-z0-9-]+)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

# Flags of other programs in prose.
FOREIGN = {
    "compare-to",
    "concurrency",
    "conf",
    "markdown",
    "only",
    "quick",
    "master",
    "reflink",
    "signal",
    "upgrade",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_flags_in_commands_exist(page: Path) -> None:
    shown = [command for block in blocks(page) for command in shell_commands(block)]

    assert [] == [wrong for command in shown for wrong in unknown_flags(command.line)]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_flags_in_prose_exist(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    named = re.findall(r"`--([a-z][a-z0-9-]*[a-z0-9])(?![\w*-])", text)
    known = FOREIGN.union(*(flags(program) for program in programs()))

    assert [] == [flag for flag in named if flag not in known]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = {
        target
        for page in pages()
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }

    assert shown
    assert set() == shown - targets


def shell_commands(block: Block) -> list[Command]:
    return commands(block) if block.language in ("sh", "console", "given") else []


def unknown_flags(line: str) -> list[str]:
    """Unknown flags of our programs in a pipeline of commands."""
    wrong = []
    for part in re.split(r"[|;&]+", _QUOTED.sub("", line)):
        words = part.split()
        program = next(
            (" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in programs()), ""
        )
        if program:
            asked = _FLAG.findall(part.partition("#")[0])
            wrong += [f"{program} --{flag}" for flag in asked if flag not in flags(program)]
    return wrong


@cache
def programs() -> frozenset[str]:
    """All our commands and subcommands."""
    context = click.Context(cli)
    found = list(SCRIPTS)
    for name in cli.list_commands(context):
        found.append(f"penstock {name}")
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            found += [f"penstock {name} {each}" for each in command.list_commands(context)]
    return frozenset(found)


@cache
def flags(program: str) -> frozenset[str]:
    """Flags in the `--help` of a program."""
    first, *rest = program.split()
    module, _, function = SCRIPTS[first].partition(":")
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        getattr(import_module(module), function)([*rest, "--help"])
    return frozenset(_FLAG.findall(said.getvalue()))
