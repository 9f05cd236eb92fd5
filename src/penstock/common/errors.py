"""Every exception that Penstock raises on purpose, in one tree.

    Error
      ConfigError          a flag, a config file or a start-up condition is wrong
        UsageError         the command line itself is wrong: show how it is used, exit 2
      ProtocolError        a peer broke the protocol, or asked for what it may not have
      LineTooLong          a peer's line never ends; it is told nothing
      StreamCorrupt        what a peer has compressed cannot be read
        TlsFailed          TLS with a peer cannot begin, or cannot go on
      HttpRequestError     a server that we asked did not answer, or not as it should
      AuthFailed           no auth server said who a client is
      ClientError          a producer or a consumer could not do what it was asked
        NotConnected       no nsqd can be reached, or the connection to one is lost
        NotConfirmed       no nsqd confirmed a publish in time; one may have stored it all the same
        Refused            an nsqd said no
        QueueFull          as many publishes are waiting as may wait
        ClientClosed       it was used after it was closed
      PipelineFailed       Spark could not do what it was asked
      StorageError         the disk or the data path let us down
        LimitReached       there are as many topics or channels as there may be
        DataPathError      the data path cannot be used (locked, foreign, newer, unwritable)
        LakeError          a folder is no lake, or cannot be used as one
        CorruptBatch       bytes on disk are not what was written
        LogClosed          the log was used after it was closed
        InternalError      a bug in Penstock prevented a write

The text of an `Error` is written for the person who reads it, and is shown alone on a line.
"""

__all__ = [
    "AuthFailed",
    "ClientClosed",
    "ClientError",
    "ConfigError",
    "CorruptBatch",
    "DataPathError",
    "Error",
    "HttpRequestError",
    "InternalError",
    "LakeError",
    "LimitReached",
    "LineTooLong",
    "LogClosed",
    "NotConfirmed",
    "NotConnected",
    "PipelineFailed",
    "ProtocolError",
    "QueueFull",
    "Refused",
    "StorageError",
    "StreamCorrupt",
    "TlsFailed",
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


class StreamCorrupt(Error):
    """A layer between the transport and the protocol cannot read what a peer sent: it is over."""


class TlsFailed(StreamCorrupt):
    """A handshake failed, or a peer broke TLS later on."""


class HttpRequestError(Error):
    """An HTTP request of ours failed. `url` is shown, so it is without query and password.

    `status` is that of an answer that came and was not the one wanted. `timed_out` is whether none
    came in time, be the server there or not.
    """

    def __init__(
        self, url: str, reason: str, *, status: int | None = None, timed_out: bool = False
    ) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason
        self.status = status
        self.timed_out = timed_out

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class AuthFailed(Error):
    """No auth server gave a good answer. The text is for our log: the client is not told why."""


class ClientError(Error):
    """What a user of `penstock.client` has to expect."""


class NotConnected(ClientError):
    """The text names every address that was tried, and what is wrong with it."""


class NotConfirmed(ClientError):
    """Publishing it again may store it twice; not doing so may lose it."""


class Refused(ClientError):
    """An nsqd refused a command: `code` is the wire's (`E_BAD_TOPIC`, ...), `detail` its words."""

    def __init__(self, address: str, code: str, detail: str = "") -> None:
        super().__init__(address, code, detail)
        self.address = address
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.address}: {self.code} {self.detail}".rstrip()


class QueueFull(ClientError):
    """A publish that may not wait would have had to."""


class ClientClosed(ClientError):
    """There is nothing left to do it with."""


class PipelineFailed(Error):
    """What Spark raised, in one line."""


class StorageError(Error):
    """A write, a read or an fsync failed; the data of a failed write is not stored.

    `reason` is the cause without the file name, by which repeated errors are grouped.
    """

    def __init__(self, text: str = "", *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


class LimitReached(StorageError):
    """One more topic or channel than the limit allows was asked for."""


class DataPathError(StorageError):
    """The data path cannot be used, and has not been touched."""


class LakeError(StorageError):
    """The folder has not been touched."""


class CorruptBatch(StorageError):
    """A batch in a segment fails its checks."""


class LogClosed(StorageError):
    """The log has been closed."""


class InternalError(StorageError):
    """An unexpected exception was caught, and logged with its traceback."""

    def __init__(self, doing: str, bug: Exception) -> None:
        super().__init__(f"internal error while {doing}: {type(bug).__name__}")
