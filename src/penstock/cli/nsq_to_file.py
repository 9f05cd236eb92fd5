"""The `nsq_to_file` command."""

import sys

from penstock.cli.command_line import ToolCommand
from penstock.tools.nsq_to_file import run
from penstock.tools.nsq_to_file_options import NsqToFileOptions, check

__all__ = ["COMMAND", "main"]

COMMAND = ToolCommand(
    name="nsq_to_file", options=NsqToFileOptions, check=check, run=run, refuses_arguments=True
)

main = COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
