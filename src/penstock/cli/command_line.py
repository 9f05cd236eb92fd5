"""What every command does first: read its command line, or say why it cannot.

Exit codes are NSQ's: 0 after a clean stop, 1 when it cannot run, 2 when the command line is wrong.
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
    """The command line, or the exit code if that is all that was to be done."""
    _occupy_standard_files()
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


def _occupy_standard_files() -> None:
    """Where one is closed, no socket of ours may take its number: libuv would not stand it, and
    what is meant for the user would go elsewhere."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCommand:
    """A tool's command. Log lines begin with the tool's name, unless its options set a prefix."""

    name: str
    options: type[Any]
    check: Callable[[Any], None]
    run: Callable[[Any, Logger], int]  # to import the tool itself only when it is called
    refuses_arguments: bool = False  # as NSQ's nsq_to_file does; other tools ignore arguments

    def main(self, args: Sequence[str] | None = None) -> int:
        """Runs the tool until its work is done or it is told to stop."""
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
    """A daemon's command."""

    name: str
    options: type[OptionsT]
    check: Callable[[OptionsT], None]
    run: Callable[[OptionsT, Logger], int]  # to import the daemon itself only when it is called
    deprecated: Mapping[str, str] = field(default_factory=dict)  # field to what replaces it

    def main(self, args: Sequence[str] | None = None) -> int:
        """Runs the daemon until it is told to stop."""
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
            self._warn_of_what_has_no_effect(line, options.config, log)
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

    def _warn_of_what_has_no_effect(self, line: CommandLine, config: str, log: Logger) -> None:
        for key in unknown_keys(self.options, config) if config else ():
            log.warning("config file %s: no option of that name: %s", config, key)
        if line.rest:
            log.warning("arguments after the flags have no effect: %s", " ".join(line.rest))
        for name, instead in self.deprecated.items():
            if name in line.values:
                flag = name.replace("_", "-")
                log.warning("--%s is deprecated and has no effect, use %s", flag, instead)
