"""Every exception that Penstock raises on purpose, in one tree.

    Error
      ConfigError          a flag, a config file or a start-up condition is wrong
        UsageError         the command line cannot be parsed: print the usage, exit with 2
      ProtocolError        a peer broke the protocol, or its command was refused
      LineTooLongError     a peer's line exceeds the limit; the connection closes without a response
      CorruptStreamError   a peer's compressed or encrypted bytes cannot be decoded
        TlsError           a TLS handshake failed, or a peer broke TLS later
      HttpRequestError     an HTTP request to another server failed
      AuthError            no auth server authenticated a client
      ClientError          a producer or a consumer could not do what it was asked
        NotConnectedError  no nsqd can be reached, or a connection is lost
        NotConfirmedError  no nsqd confirmed a publish in time; it may be stored nevertheless
        RefusedError       nsqd answered a command with an error
        QueueFullError     the limit of unconfirmed publishes is reached
        ClientClosedError  the client was used after close()
      PipelineError        a Spark job failed
      StorageError         a disk operation failed, or the data path cannot be used
        LimitReachedError  the limit on topics or channels is reached
        DataPathError      the data path cannot be used (locked, foreign, newer, unwritable)
        LakeError          a folder is not a lake, or cannot be used as one
        CorruptBatchError  bytes on disk differ from those written
        LogClosedError     the log was used after it was closed
        NotInSyncError     too few members of a replicated node are in sync
        InternalError      a bug in Penstock prevented a write
      ReplicationError     a member cannot join, lead or follow
        EtcdError          etcd cannot be reached, or a request to it failed

The text of an `Error` is written for the user and printed alone on a line.
"""

__all__ = [
    "AuthError",
    "ClientClosedError",
    "ClientError",
    "ConfigError",
    "CorruptBatchError",
    "CorruptStreamError",
    "DataPathError",
    "Error",
    "EtcdError",
    "HttpRequestError",
    "InternalError",
    "LakeError",
    "LimitReachedError",
    "LineTooLongError",
    "LogClosedError",
    "NotConfirmedError",
    "NotConnectedError",
    "NotInSyncError",
    "PipelineError",
    "ProtocolError",
    "QueueFullError",
    "RefusedError",
    "ReplicationError",
    "StorageError",
    "TlsError",
    "UsageError",
]


class Error(Exception):
    """Base of all expected errors; any other exception is a bug."""


class ConfigError(Error):
    """The process cannot start with this configuration."""


class UsageError(ConfigError):
    """The command line cannot be parsed."""


class ProtocolError(Error):
    """The error frame sent to a TCP peer.

    `code` is the error code of the protocol (`E_INVALID`, ...). After a fatal error the connection
    is closed; only E_FIN_FAILED, E_REQ_FAILED and E_TOUCH_FAILED are not fatal.
    """

    def __init__(self, code: str, detail: str = "", *, fatal: bool = True) -> None:
        super().__init__(code, detail, fatal)
        self.code = code
        self.detail = detail
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.code} {self.detail}" if self.detail else self.code


class LineTooLongError(Error):
    """A TCP peer's line exceeds the limit: the connection is closed without an error frame."""


class CorruptStreamError(Error):
    """A peer's compressed or encrypted bytes cannot be decoded; the connection must be closed."""


class TlsError(CorruptStreamError):
    """A TLS handshake failed, or a peer broke TLS later."""


class HttpRequestError(Error):
    """An HTTP request to another server failed.

    `url` is printed, so pass it without query and password. `status` is the status of an unexpected
    response. `timed_out` is true if no response arrived in time.
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


class AuthError(Error):
    """No auth server gave a valid response. The text is logged, and not sent to the client."""


class ClientError(Error):
    """Base class of the errors of `penstock.client`."""


class NotConnectedError(ClientError):
    """No connection to an nsqd. The text names each address that was tried, with the reason."""


class NotConfirmedError(ClientError):
    """No nsqd confirmed a publish in time. Publishing again may store the message twice; not
    publishing again may lose it."""


class RefusedError(ClientError):
    """nsqd at `address` answered a command with an error: `code` (`E_BAD_TOPIC`, ...) and `detail`
    as on the wire."""

    def __init__(self, address: str, code: str, detail: str = "") -> None:
        super().__init__(address, code, detail)
        self.address = address
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.address}: {self.code} {self.detail}".rstrip()


class QueueFullError(ClientError):
    """`publish_nowait` has no room: `max_queued_bytes` are not confirmed yet."""


class ClientClosedError(ClientError):
    """The producer or consumer is closed."""


class PipelineError(Error):
    """A Spark job failed; the text is Spark's error in one line."""


class StorageError(Error):
    """A write, a read or an fsync failed; the data of a failed write is not stored.

    `reason` is the cause without the file name, by which repeated errors are grouped.
    """

    def __init__(self, text: str = "", *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


class LimitReachedError(StorageError):
    """Creating the topic or channel would exceed the limit."""


class DataPathError(StorageError):
    """The data path cannot be used; it was not changed."""


class LakeError(StorageError):
    """The folder is not a lake, or cannot be used as one; it was not changed."""


class CorruptBatchError(StorageError):
    """A batch in a segment fails its checks."""


class LogClosedError(StorageError):
    """The log has been closed."""


class ReplicationError(Error):
    """A member cannot join, lead or follow; its data path was not changed."""


class EtcdError(ReplicationError):
    """A request to etcd failed. A change that it requested may have been made nevertheless.

    `is_permanent` is true if retrying cannot help: etcd rejects the user or the password, or it is
    not the etcd that was used before.
    """

    def __init__(self, text: str, *, is_permanent: bool = False) -> None:
        super().__init__(text)
        self.is_permanent = is_permanent


class NotInSyncError(StorageError):
    """Too few members of a replicated node are in sync to store messages, or the nsqd no longer
    leads the node. Clients recognise the beginning of the text."""

    def __init__(self, text: str) -> None:
        super().__init__(f"not in sync: {text}")


class InternalError(StorageError):
    """An unexpected exception was caught and logged with its traceback."""

    def __init__(self, doing: str, bug: Exception) -> None:
        super().__init__(f"internal error while {doing}: {type(bug).__name__}")
