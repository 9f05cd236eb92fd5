"""The `nsq_to_file` command."""

import sys
from collections.abc import Sequence

from penstock.cli.tool_command import ToolCommand
from penstock.tools.file_options import FileOptions, check
from penstock.tools.nsq_to_file import run

__all__ = ["main"]

COMMAND = ToolCommand(
    name="nsq_to_file", options=FileOptions, check=check, run=run, refuses_arguments=True
)


def main(args: Sequence[str] | None = None) -> int:
    """Writes messages to files until it is told to stop."""
    return COMMAND.main(args)


if __name__ == "__main__":
    sys.exit(main())
