"""The `nsq_tail` command."""

import sys

from penstock.cli.command_line import ToolCommand
from penstock.tools.nsq_tail import NsqTailOptions, check, run

__all__ = ["COMMAND", "main"]

COMMAND = ToolCommand(name="nsq_tail", options=NsqTailOptions, check=check, run=run)

main = COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
