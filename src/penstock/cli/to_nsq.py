"""The `to_nsq` command."""

import sys
from collections.abc import Sequence

from penstock.cli.tool_command import ToolCommand
from penstock.tools.to_nsq import ToNsqOptions, check, run

__all__ = ["main"]

COMMAND = ToolCommand(name="to_nsq", options=ToNsqOptions, check=check, run=run)


def main(args: Sequence[str] | None = None) -> int:
    """Publishes standard input."""
    return COMMAND.main(args)


if __name__ == "__main__":
    sys.exit(main())
