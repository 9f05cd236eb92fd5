"""The `nsq_stat` command: statistics of one channel over all its nodes.

Flags, columns and exit codes are NSQ's. On a terminal it shows a live view, with `-plain` the same
lines as in a pipe.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from penstock.cli.command_line import ToolCommand
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ConfigError
from penstock.common.logs import Logger
from penstock.common.option_types import BOOL, DURATION, INT, STRING, STRINGS
from penstock.common.options import check_values, option

__all__ = ["NsqStatOptions", "check", "main"]

FOR_EVER = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqStatOptions:
    """The options of nsq_stat."""

    topic: str = option("", STRING, "topic to show")
    channel: str = option("", STRING, "channel to show")
    interval_ns: int = option(2 * SECOND_NS, DURATION, "time between two rows", at_least=1)
    count: int = option(
        FOR_EVER, INT, "exit after this many rows", default_text="unlimited", at_least=1
    )
    plain: bool = option(False, BOOL, "print rows instead of a live view on a terminal")
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqd: host:port",
        flag="nsqd-http-address",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqlookupd: host:port",
        flag="lookupd-http-address",
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS, DURATION, "timeout of connecting to a server", at_least=1
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS, DURATION, "timeout of a request, including connecting", at_least=1
    )
    version: bool = option(False, BOOL, "print the version and exit")


def main(args: Sequence[str] | None = None) -> int:
    """Show the statistics until stopped."""
    return COMMAND.main(args)


def check(options: NsqStatOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    if not options.topic or not options.channel:
        raise ConfigError("--topic and --channel are required")
    check_values(options)
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    if not nsqds and not lookupds:
        raise ConfigError("--nsqd-http-address or --lookupd-http-address required")
    if nsqds and lookupds:
        raise ConfigError("use --nsqd-http-address or --lookupd-http-address not both")
    for flag, addresses in (("nsqd", nsqds), ("lookupd", lookupds)):
        if any(address.startswith("http") for address in addresses):
            raise ConfigError(f"--{flag}-http-address error - address should not contain scheme")


def _run(options: NsqStatOptions, log: Logger) -> int:
    # Imported here, so that an error in the flags is reported at once.
    import asyncio  # noqa: PLC0415

    from penstock.admin_api.cluster import Cluster  # noqa: PLC0415
    from penstock.cli.interrupts import exit_on_signals, require_stdout  # noqa: PLC0415
    from penstock.net.http_client.client import HttpClient  # noqa: PLC0415
    from penstock.tools.live_screen import maybe_live_console  # noqa: PLC0415
    from penstock.tools.nsq_stat import ChannelView  # noqa: PLC0415
    from penstock.tools.stdout_writer import open_stdout  # noqa: PLC0415

    require_stdout()
    http = HttpClient(
        connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
        request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
    )
    cluster = Cluster(
        http, nsqds=options.nsqd_http_addresses, lookupds=options.lookupd_http_addresses
    )
    watch = ChannelView(
        cluster,
        options.topic,
        options.channel,
        interval_seconds=options.interval_ns / SECOND_NS,
        count=options.count,
    )
    console = None if options.plain else maybe_live_console()
    if console is not None:
        asyncio.run(watch.show_live(console))
        return 0
    with suppress(BrokenPipeError), exit_on_signals():
        warn = partial(log.warning, "%s")
        asyncio.run(watch.print_rows(open_stdout(), warn))
    return 0


COMMAND = ToolCommand(name="nsq_stat", options=NsqStatOptions, check=check, run=_run)


if __name__ == "__main__":
    sys.exit(main())
