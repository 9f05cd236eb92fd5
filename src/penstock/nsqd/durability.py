"""When what was appended is fsynced, and who waits for it.

A log is fsynced after every `sync_every` messages, and every sync timeout if it has grown. With
`sync_every` 1 a publish is answered only once an fsync that covers it has returned; one fsync
covers everybody who is waiting at the time.
"""

from collections.abc import Callable

from penstock.broker.topic import Topic
from penstock.common.errors import StorageError
from penstock.storage import GroupCommit, TopicLog

__all__ = ["Durability"]


class Durability:
    """See the module's docstring."""

    def __init__(self, commit: GroupCommit, sync_every: int) -> None:
        self.sync_every = sync_every
        self._commit = commit

    def is_safe(self, topic: Topic) -> bool:
        """Whether what has been appended is as safe as it has to be; if not, it is to be synced. To
        be asked when `sync_every` messages have come together: asks for an fsync by itself."""
        if self.sync_every == 1:
            return False
        assert isinstance(topic.log, TopicLog)
        self._commit.request(topic.log)
        return True

    def sync(self, topic: Topic, done: Callable[[StorageError | None], None]) -> None:
        """Calls `done`, later, once all that was appended is safe, or cannot be made so."""
        assert topic.store is not None
        self._commit.request(topic.store.log, done)

    def sync_channels(self, topic: Topic, done: Callable[[StorageError | None], None]) -> None:
        """Requests an fsync of the topic's cursors; later calls `done` with the error, if any."""
        assert topic.store is not None
        self._commit.request(topic.store.cursors, done)

    def sync_rest(self, topic: Topic) -> None:
        """Requests an fsync for everything that is not synced. To be called every sync timeout."""
        if topic.store is not None:
            for part in (topic.store.log, topic.store.cursors):
                if part.needs_sync:
                    self._commit.request(part)
