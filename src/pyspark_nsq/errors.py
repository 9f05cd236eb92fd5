"""What this package raises beside Penstock's own errors, of which these are."""

from penstock.common.errors import Error

__all__ = ["DataLossError", "NodeUnavailableError", "NotStoredError"]


class DataLossError(Error):
    """Messages that were to be read are no more. `failOnDataLoss=false` goes on without them."""


class NodeUnavailableError(Error):
    """An nsqd that is needed cannot be reached, and has been waited for."""


class NotStoredError(Error):
    """A place in a log that cannot be read from.

    `first_seq` is the next message that is there, `next_seq` the number of the next one to come;
    whichever of them nsqd has told.
    """

    def __init__(
        self, text: str, *, first_seq: int | None = None, next_seq: int | None = None
    ) -> None:
        super().__init__(text)
        self.first_seq = first_seq
        self.next_seq = next_seq
