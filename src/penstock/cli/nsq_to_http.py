"""The `nsq_to_http` command."""

import sys

from penstock.cli.command_line import ToolCommand
from penstock.tools.nsq_to_http import NsqToHttpOptions, check, run

__all__ = ["COMMAND", "main"]

COMMAND = ToolCommand(name="nsq_to_http", options=NsqToHttpOptions, check=check, run=run)

main = COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
