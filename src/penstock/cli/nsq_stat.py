"""The `nsq_stat` command: the figures of one channel, over all its nodes, again and again.

Flags, columns and exit codes are NSQ's. On a terminal it is a live view, unless `-plain` asks for
the lines that a pipe gets.
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
    """All it can be told."""

    topic: str = option("", STRING, "the topic")
    channel: str = option("", STRING, "the channel")
    interval_ns: int = option(
        2 * SECOND_NS, DURATION, "time between two looks, which is a row each", at_least=1
    )
    count: int = option(FOR_EVER, INT, "exit after so many rows", default_text="no end", at_least=1)
    plain: bool = option(False, BOOL, "print rows on a terminal too, instead of a live view")
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "the HTTP address of an nsqd",
        flag="nsqd-http-address",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "the HTTP address of an nsqlookupd",
        flag="lookupd-http-address",
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS, DURATION, "limit on connecting", at_least=1
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS, DURATION, "limit on a request, connecting included", at_least=1
    )
    version: bool = option(False, BOOL, "print the version and exit")


def main(args: Sequence[str] | None = None) -> int:
    """Shows the figures until it is told to stop."""
    return COMMAND.main(args)


def check(options: NsqStatOptions) -> None:
    """Raises ConfigError if it cannot do as these options say."""
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
    # Last, so that a mistake in the flags is answered at once.
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
