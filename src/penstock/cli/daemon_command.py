"""What the commands of all daemons have in common: from a command line to a running daemon, and
back to an exit code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.cli.command_line import read_command_line
from penstock.common.daemon_options import DaemonOptions
from penstock.common.errors import Error
from penstock.common.logs import Logger
from penstock.common.options import CommandLine, load_config, unknown_keys

__all__ = ["DaemonCommand"]

OptionsT = TypeVar("OptionsT", bound=DaemonOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonCommand(Generic[OptionsT]):
    """A daemon's command."""

    name: str
    options: type[OptionsT]
    check: Callable[[OptionsT], None]
    run: Callable[[OptionsT, Logger], int]  # to import the daemon itself only when it is called
    deprecated: Mapping[str, str] = field(default_factory=dict)  # field to what replaces it

    def main(self, args: Sequence[str] | None) -> int:
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
