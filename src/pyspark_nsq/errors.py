"""Errors of the Spark source, in addition to those of `penstock.common.errors`."""

from penstock.common.errors import Error

__all__ = ["DataLossError", "NodeUnavailableError", "NotStoredError"]


class DataLossError(Error):
    """Messages to be read no longer exist. `failOnDataLoss=false` skips them."""


class NodeUnavailableError(Error):
    """A required nsqd was unreachable for longer than `nodeTimeout`."""


class NotStoredError(Error):
    """The requested message is not in the log.

    `first_seq` is the next available message, `next_seq` the sequence number of the next message
    to be published. At most one of them is set.
    """

    def __init__(
        self, text: str, *, first_seq: int | None = None, next_seq: int | None = None
    ) -> None:
        super().__init__(text)
        self.first_seq = first_seq
        self.next_seq = next_seq
