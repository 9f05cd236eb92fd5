"""One thread that fsyncs. (Signatures first; the inside is being written.)"""

from collections.abc import Callable

from penstock.errors import StorageError
from penstock.log.cursors import Cursors
from penstock.log.topic_log import TopicLog

__all__ = ["GroupCommit"]


class GroupCommit:
    """Fsyncs logs without blocking their owner; a log whose fsync failed is retried every second
    until it has healed, asked for or not."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        raise NotImplementedError

    def request(
        self,
        log: TopicLog | Cursors,
        done: Callable[[StorageError | None], None] | None = None,
    ) -> None:
        """`done` runs in the owner's thread once all that `log` held at the call is safe, or cannot
        be made so. Asking for `store.cursors` every sync timeout bounds what a power loss
        delivers again."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
