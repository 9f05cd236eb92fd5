"""The table of commands matches the documentation; test_server.py tests the decoders."""

import doctest
from pathlib import Path

import pytest

from penstock.protocol.command_table import COMMANDS, Command
from penstock.protocol.events import State

PAGE = Path(__file__).parents[2] / "docs/reference/protocol.md"


def names(states: tuple[State, ...]) -> str:
    return ", ".join(state.name.lower() for state in states)


def row(command: Command) -> str:
    allowed = "always" if set(State) == set(command.states) else names(command.states)
    if command.ignored_in:
        allowed += f"; ignored: {names(command.ignored_in)}"
    leads_to = command.next_state.name.lower() if command.next_state is not None else ""
    cells = (f"`{command.syntax}`", allowed, leads_to, command.response)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def test_the_documented_table_is_the_one_in_use() -> None:
    table = PAGE.read_text().partition("## Commands")[2].partition("|---|---|---|---|\n")[2]

    assert [row(command) for command in COMMANDS.values()] == table.split("\n\n")[0].splitlines()


def test_the_documented_examples_work() -> None:
    assert 0 == doctest.testfile(str(PAGE), module_relative=False).failed


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_the_syntax_of_a_command_starts_with_its_name(command: Command) -> None:
    assert command is COMMANDS[command.name.encode()]
    assert command.syntax.startswith((f"{command.name} ", rf"{command.name}\n"))
    assert not set(command.states) & set(command.ignored_in)
