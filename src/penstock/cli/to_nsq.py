"""The `to_nsq` command."""

import sys

from penstock.cli.command_line import ToolCommand
from penstock.tools.to_nsq import ToNsqOptions, check, run

__all__ = ["COMMAND", "main"]

COMMAND = ToolCommand(name="to_nsq", options=ToNsqOptions, check=check, run=run)

main = COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
