"""When what was appended is fsynced, and who waits for it.

A log is fsynced after every `sync_every` messages, and every sync timeout if it has grown. With
`sync_every` 1 a publish is answered only once an fsync that covers it has returned; one fsync
covers everybody who is waiting at the time.
"""

from collections.abc import Callable, Iterable

from penstock.broker.topic import Topic
from penstock.errors import StorageError
from penstock.log import GroupCommit

__all__ = ["Durability"]


class Durability:
    """See the module's docstring."""

    def __init__(self, commit: GroupCommit, sync_every: int) -> None:
        self._commit = commit
        self._sync_every = sync_every

    def appended(self, topic: Topic, done: Callable[[StorageError | None], None]) -> None:
        """A batch has been appended: calls `done` once it is as safe as it has to be, or cannot be
        made so. Asks for an fsync when enough has come together."""
        store = topic.store
        if store is None:
            done(None)
        elif self._sync_every == 1:
            self._commit.request(store.log, done)
        else:
            done(None)
            if store.log.unsynced >= self._sync_every > 1:
                self._commit.request(store.log)

    def sync_what_is_left(self, topics: Iterable[Topic]) -> None:
        """To be called every sync timeout."""
        for topic in topics:
            if topic.store is not None:
                for part in (topic.store.log, topic.store.cursors):
                    if part.needs_sync:
                        self._commit.request(part)
