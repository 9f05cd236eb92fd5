"""The `nsqd` command: from its command line to a running daemon, and back to an exit code.

Exit codes are NSQ's: 0 after a clean stop, 1 when it cannot run, 2 when the command line is wrong.
"""

import sys
from collections.abc import Sequence

from penstock.errors import Error, UsageError
from penstock.logs import Logger
from penstock.nsqd.options import NsqdOptions, check
from penstock.options import (
    CommandLine,
    load_config,
    parse_flags,
    unknown_keys,
    usage,
    version_line,
)

__all__ = ["main"]

PROGRAM = "nsqd"


def main(args: Sequence[str] | None = None) -> int:
    """Runs nsqd until it is told to stop."""
    try:
        line = parse_flags(NsqdOptions, sys.argv[1:] if args is None else args)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage(NsqdOptions, PROGRAM)}")
        return 2
    if line.help_wanted:
        sys.stderr.write(usage(NsqdOptions, PROGRAM))
        return 0
    if line.values.get("version"):
        sys.stdout.write(version_line(PROGRAM) + "\n")
        return 0
    return _run(line)


def _run(line: CommandLine) -> int:
    log = Logger("[nsqd] ")
    try:
        options = _options(line)
        log = Logger(options.log_prefix, options.log_level, json=options.log_format == "json")
        check(options)
        _warn_of_what_has_no_effect(line, options.config, log)

        # Last, so that a mistake in the flags is answered at once.
        from penstock.nsqd.daemon import run  # noqa: PLC0415

        return run(options, log)
    except Error as error:
        log.fatal("%s", error)
        return 1
    except KeyboardInterrupt:
        return 0


def _options(line: CommandLine) -> NsqdOptions:
    config = line.values.get("config", "")
    from_file = load_config(NsqdOptions, config) if config else {}
    return NsqdOptions(**{**from_file, **line.values})


def _warn_of_what_has_no_effect(line: CommandLine, config: str, log: Logger) -> None:
    for key in unknown_keys(NsqdOptions, config) if config else ():
        log.warning("config file %s: no option of that name: %s", config, key)
    if line.rest:
        log.warning("arguments after the flags have no effect: %s", " ".join(line.rest))
    for deprecated, instead in (("verbose", "--log-level"), ("worker_id", "--node-id")):
        if deprecated in line.values:
            flag = deprecated.replace("_", "-")
            log.warning("--%s is deprecated and has no effect, use %s", flag, instead)


if __name__ == "__main__":
    sys.exit(main())
