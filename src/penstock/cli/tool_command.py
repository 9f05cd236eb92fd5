"""The shared part of the tools' commands: parse the command line, run the tool, return its exit
code. An error is reported in one line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cli.command_line import read_command_line
from penstock.common.errors import ConfigError, Error
from penstock.common.logs import Logger

__all__ = ["ToolCommand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCommand:
    """A tool's command. Log lines begin with the tool's name, unless its options set a prefix."""

    name: str
    options: type[Any]
    check: Callable[[Any], None]
    run: Callable[[Any, Logger], int]  # to import the tool itself only when it is called
    refuses_arguments: bool = False  # as NSQ's nsq_to_file does; other tools ignore arguments

    def main(self, args: Sequence[str] | None) -> int:
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
