"""The `nsqlookupd` command."""

import sys
from collections.abc import Sequence

from penstock.cli.command_line import DaemonCommand
from penstock.common.logs import Logger
from penstock.nsqlookupd.options import NsqlookupdOptions, check

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until a signal stops it."""
    return COMMAND.main(args)


def _run(options: NsqlookupdOptions, log: Logger) -> int:
    # Imported here, so that an error in the flags is reported at once.
    from penstock.nsqlookupd.daemon import run  # noqa: PLC0415

    return run(options, log)


COMMAND = DaemonCommand(
    name="nsqlookupd",
    options=NsqlookupdOptions,
    check=check,
    run=_run,
    deprecated={"verbose": "--log-level"},
)


if __name__ == "__main__":
    sys.exit(main())
