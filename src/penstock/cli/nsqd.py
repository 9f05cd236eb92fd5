"""The `nsqd` command."""

import sys
from collections.abc import Sequence

from penstock.cli.command_line import DaemonCommand
from penstock.common.logs import Logger
from penstock.nsqd.options import NsqdOptions, check

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run nsqd until a signal stops it."""
    return COMMAND.main(args)


def _run(options: NsqdOptions, log: Logger) -> int:
    # Imported here, so that an error in the flags is reported at once.
    from penstock.nsqd.daemon import run  # noqa: PLC0415
    from penstock.nsqd.shards import nodes_of, shards_of  # noqa: PLC0415

    shards = nodes_of(options) if options.nodes else shards_of(options)
    if len(shards) == 1 and not options.nodes:
        return run(options, log)
    from penstock.nsqd.supervisor import supervise  # noqa: PLC0415

    return supervise(shards, log)


COMMAND = DaemonCommand(
    name="nsqd",
    options=NsqdOptions,
    check=check,
    run=_run,
    deprecated={"verbose": "--log-level", "worker_id": "--node-id"},
)


if __name__ == "__main__":
    sys.exit(main())
