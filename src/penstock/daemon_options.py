"""What every daemon can be told, whatever it serves: its version, a config file, how it logs."""

from dataclasses import dataclass

from penstock.logs import Logger, LogLevel
from penstock.option_kinds import BOOL, LOG_LEVEL, STRING
from penstock.options import option

__all__ = ["DaemonOptions", "prefix_option"]


def prefix_option(prefix: str) -> str:
    """Declares `log_prefix`, whose default is each daemon's own."""
    return option(prefix, STRING, "what every log line starts with")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The options of any daemon; each adds its own."""

    version: bool = option(False, BOOL, "print the version and exit", key=None)
    config: str = option("", STRING, "path of a TOML file of options", key=None)
    log_level: LogLevel = option(
        LogLevel.INFO, LOG_LEVEL, "least severe log lines to write: debug, info, warn, error, fatal"
    )
    log_prefix: str = prefix_option("")
    log_format: str = option(
        "text", STRING, "log lines in NSQ's format, or a JSON object each", choices=("text", "json")
    )
    verbose: bool = option(False, BOOL, "deprecated, no effect: see -log-level", key=None)

    def logger(self) -> Logger:
        """One that logs as these options say."""
        return Logger(self.log_prefix, self.log_level, json=self.log_format == "json")
