"""Options of all daemons: version, config file, logging."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.common.errors import ConfigError
from penstock.common.logs import Logger, LogLevel
from penstock.common.option_types import BOOL, LOG_LEVEL, STRING, STRINGS
from penstock.common.options import option

__all__ = ["DaemonOptions", "allowed_origins_option", "check_allowed_origins", "prefix_option"]

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


def prefix_option(prefix: str) -> str:
    """Declare `log_prefix` with the daemon's default."""
    return option(prefix, STRING, "prefix of log lines")


def allowed_origins_option() -> tuple[str, ...]:
    """Declare `http_allowed_origins`, for daemons with an HTTP API but no web pages."""
    return option(
        (),
        STRINGS,
        "origin, such as https://app.example.com, whose web pages may send requests that change"
        " something, or * for all",
        flag="http-allowed-origin",
        key="http_allowed_origins",
    )


def check_allowed_origins(origins: Iterable[str]) -> None:
    """Raises ConfigError if a value is neither `*` nor an origin as browsers send it."""
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--http-allowed-origin must be http(s)://host[:port] or *, not {origin!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Common options; each daemon adds its own."""

    version: bool = option(False, BOOL, "print the version and exit", key=None)
    config: str = option("", STRING, "path of a TOML file of options", key=None)
    log_level: LogLevel = option(
        LogLevel.INFO, LOG_LEVEL, "minimum level of log lines: debug, info, warn, error or fatal"
    )
    log_prefix: str = prefix_option("")
    log_format: str = option(
        "text",
        STRING,
        "format of log lines: text (that of NSQ) or json (one object per line)",
        choices=("text", "json"),
    )
    verbose: bool = option(False, BOOL, "deprecated, no effect: see -log-level", key=None)

    def logger(self) -> Logger:
        """A logger with these options."""
        return Logger(self.log_prefix, self.log_level, json=self.log_format == "json")
