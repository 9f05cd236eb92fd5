"""The `nsq_to_nsq` command."""

import sys
from collections.abc import Sequence

from penstock.cli.tool_command import ToolCommand
from penstock.tools.nsq_to_nsq import RelayOptions, check, run

__all__ = ["main"]

COMMAND = ToolCommand(name="nsq_to_nsq", options=RelayOptions, check=check, run=run)


def main(args: Sequence[str] | None = None) -> int:
    """Passes messages on until it is told to stop."""
    return COMMAND.main(args)


if __name__ == "__main__":
    sys.exit(main())
