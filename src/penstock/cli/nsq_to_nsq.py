"""The `nsq_to_nsq` command."""

import sys

from penstock.cli.command_line import ToolCommand
from penstock.tools.nsq_to_nsq import NsqToNsqOptions, check, run

__all__ = ["COMMAND", "main"]

COMMAND = ToolCommand(name="nsq_to_nsq", options=NsqToNsqOptions, check=check, run=run)

main = COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
