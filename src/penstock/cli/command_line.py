"""What every command does first: read its command line, or say why it cannot.

Exit codes are NSQ's: 0 after a clean stop, 1 when it cannot run, 2 when the command line is wrong.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from penstock.common.errors import UsageError
from penstock.common.options import CommandLine, parse_flags, usage, version_line

__all__ = ["read_command_line"]


def read_command_line(
    options: type[Any], program: str, args: Sequence[str] | None
) -> CommandLine | int:
    """The command line, or the exit code if that is all that was to be done."""
    _occupy_standard_files()
    try:
        line = parse_flags(options, sys.argv[1:] if args is None else args)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage(options, program)}")
        return 2
    if line.help_wanted:
        sys.stderr.write(usage(options, program))
        return 0
    if line.values.get("version"):
        sys.stdout.write(version_line(program) + "\n")
        return 0
    return line


def _occupy_standard_files() -> None:
    """Where one is closed, no socket of ours may take its number: libuv would not stand it, and
    what is meant for the user would go elsewhere."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
