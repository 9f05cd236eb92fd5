"""The interface through which replication learns what the storage has written."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.storage.topic_storage import TopicStore

__all__ = ["StoreObserver"]


class StoreObserver(Protocol):
    """Receives every change of the files of a data path, in the thread that made it. It must not
    write to the store, and not raise."""

    def topic_created(self, name: str, store: "TopicStore") -> None:
        """A topic was created, or opened at the start."""

    def topic_removed(self, name: str, log_id: str) -> None:
        """A topic was deleted. `log_id` is empty if the topic was not open."""

    def appended(self, store: "TopicStore") -> None:
        """A batch was appended to the log. Neither channels nor producers know about it yet."""

    def journal_written(self, store: "TopicStore") -> None:
        """A record was appended to the journal, or a new generation of it was started."""

    def segment_removed(self, store: "TopicStore", first_seq: int) -> None:
        """The segment that began at `first_seq` was trimmed."""

    def damage_found(self, store: "TopicStore") -> None:
        """A read has found damaged bytes in the log."""
