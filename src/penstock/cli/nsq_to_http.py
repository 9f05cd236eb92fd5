"""The `nsq_to_http` command."""

import sys
from collections.abc import Sequence

from penstock.cli.tool_command import ToolCommand
from penstock.tools.http_options import HttpOptions, check
from penstock.tools.nsq_to_http import run

__all__ = ["main"]

COMMAND = ToolCommand(name="nsq_to_http", options=HttpOptions, check=check, run=run)


def main(args: Sequence[str] | None = None) -> int:
    """Makes a request for each message until it is told to stop."""
    return COMMAND.main(args)


if __name__ == "__main__":
    sys.exit(main())
