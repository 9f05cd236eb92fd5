"""The `nsq_tail` command."""

import sys
from collections.abc import Sequence

from penstock.cli.tool_command import ToolCommand
from penstock.tools.nsq_tail import TailOptions, check, run

__all__ = ["main"]

COMMAND = ToolCommand(name="nsq_tail", options=TailOptions, check=check, run=run)


def main(args: Sequence[str] | None = None) -> int:
    """Shows the messages of topics until it is told to stop."""
    return COMMAND.main(args)


if __name__ == "__main__":
    sys.exit(main())
