"""From the command line of a daemon or a tool to its exit code.

Exit codes are NSQ's: 0 after a clean stop, 1 for an error, 2 for an invalid command line.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock.common.daemon_options import DaemonOptions
from penstock.common.errors import ConfigError, Error, UsageError
from penstock.common.logs import Logger
from penstock.common.options import (
    CommandLine,
    load_config,
    parse_flags,
    unknown_keys,
    usage,
    version_line,
)

__all__ = ["DaemonCommand", "ToolCommand", "read_command_line"]


def read_command_line(
    options: type[Any], program: str, args: Sequence[str] | None
) -> CommandLine | int:
    """The parsed command line; an exit code after `-help`, `-version` or an error."""
    _open_closed_standard_files()
    try:
        line = parse_flags(options, sys.argv[1:] if args is None else args)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage(options, program)}")
        return 2
    if line.help_wanted:
        sys.stderr.write(usage(options, program))
        return 0
    if line.values.get("version"):
        sys.stdout.write(version_line(program) + "\n")
        return 0
    return line


def _open_closed_standard_files() -> None:
    """Open /dev/null for each closed standard file. Otherwise a socket would get its number: libuv
    fails, and output for the user would go to a client."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCommand:
    """The command of a tool. Log lines start with its name, unless the options set a prefix."""

    name: str
    options: type[Any]
    check: Callable[[Any], None]
    run: Callable[[Any, Logger], int]  # may import the tool lazily
    refuses_arguments: bool = False  # nsq compat: only nsq_to_file does

    def main(self, args: Sequence[str] | None = None) -> int:
        """Run the tool until its work is done or a signal stops it."""
        line = read_command_line(self.options, self.name, args)
        if isinstance(line, int):
            return line
        log = Logger(line.values.get("log_prefix", f"[{self.name}] "))
        try:
            options = self.options(**line.values)
            log.level = getattr(options, "log_level", log.level)
            self.check(options)
            if line.rest and self.refuses_arguments:
                raise ConfigError(f"unknown arguments: {' '.join(line.rest)}")
            if line.rest:
                log.warning("arguments after the flags have no effect: %s", " ".join(line.rest))
            return self.run(options, log)
        except Error as error:
            log.fatal("%s", error)
            return 1
        except KeyboardInterrupt:
            return 0


OptionsT = TypeVar("OptionsT", bound=DaemonOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonCommand(Generic[OptionsT]):
    """The command of a daemon."""

    name: str
    options: type[OptionsT]
    check: Callable[[OptionsT], None]
    run: Callable[[OptionsT, Logger], int]  # may import the daemon lazily
    deprecated: Mapping[str, str] = field(
        default_factory=dict
    )  # field name to the flag that replaces it

    def main(self, args: Sequence[str] | None = None) -> int:
        """Run the daemon until a signal stops it."""
        line = read_command_line(self.options, self.name, args)
        if isinstance(line, int):
            return line
        return self._run(line)

    def _run(self, line: CommandLine) -> int:
        log = Logger(f"[{self.name}] ")
        try:
            options = self._options(line)
            log = options.logger()
            self.check(options)
            self._warn_of_ignored_settings(line, options.config, log)
            return self.run(options, log)
        except Error as error:
            log.fatal("%s", error)
            return 1
        except KeyboardInterrupt:
            return 0

    def _options(self, line: CommandLine) -> OptionsT:
        config = line.values.get("config", "")
        from_file = load_config(self.options, config) if config else {}
        return self.options(**{**from_file, **line.values})

    def _warn_of_ignored_settings(self, line: CommandLine, config: str, log: Logger) -> None:
        for key in unknown_keys(self.options, config) if config else ():
            log.warning("config file %s: unknown option %s", config, key)
        if line.rest:
            log.warning("arguments after the flags have no effect: %s", " ".join(line.rest))
        for name, instead in self.deprecated.items():
            if name in line.values:
                flag = name.replace("_", "-")
                log.warning("--%s is deprecated and has no effect, use %s", flag, instead)
