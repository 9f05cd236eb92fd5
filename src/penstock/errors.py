"""Every exception that Penstock raises on purpose, in one tree.

    Error
      ConfigError          a flag, a config file or a start-up condition is wrong
        UsageError         the command line itself is wrong: show how it is used, exit 2
      ProtocolError        a peer broke the protocol, or asked for what it may not have
      LineTooLong          a peer's line never ends; it is told nothing
      StorageError         the disk or the data path let us down
        DataPathError      the data path cannot be used (locked, foreign, newer, unwritable)
        CorruptBatch       bytes on disk are not what was written
        LogClosed          the log was used after it was closed

The text of an `Error` is written for the person who reads it, and is shown alone on a line.
"""

__all__ = [
    "ConfigError",
    "CorruptBatch",
    "DataPathError",
    "Error",
    "LineTooLong",
    "LogClosed",
    "ProtocolError",
    "StorageError",
    "UsageError",
]


class Error(Exception):
    """The root: catching it catches all that is expected to go wrong, and none of our bugs."""


class ConfigError(Error):
    """The process cannot start as it was told to."""


class UsageError(ConfigError):
    """The command line cannot be parsed."""


class ProtocolError(Error):
    """What a TCP peer is told when its command is refused.

    `code` is the wire's error code (`E_INVALID`, ...). A fatal error closes the connection once it
    has been sent; only E_FIN_FAILED, E_REQ_FAILED and E_TOUCH_FAILED are not fatal.
    """

    def __init__(self, code: str, detail: str = "", *, fatal: bool = True) -> None:
        super().__init__(code, detail, fatal)
        self.code = code
        self.detail = detail
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.code} {self.detail}" if self.detail else self.code


class LineTooLong(Error):
    """A TCP peer's line exceeds the limit: the connection is closed, and no error frame sent."""


class StorageError(Error):
    """A write, a read or an fsync failed; what was being stored is not stored."""


class DataPathError(StorageError):
    """The data path cannot be used, and has not been touched."""


class CorruptBatch(StorageError):
    """A batch in a segment fails its checks."""


class LogClosed(StorageError):
    """The log has been closed."""
