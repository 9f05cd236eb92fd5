"""A `PublishConfirmation` that confirms when the test says so."""

from collections.abc import Callable

from penstock.broker.replicated_topic import ReplicatedTopic
from penstock.broker.topic import Topic
from penstock.common.errors import StorageError
from penstock.storage import TopicStore

__all__ = ["IgnoringObserver", "ScriptedConfirmation"]


class ScriptedConfirmation:
    """Confirms and refuses publishes as the test says."""

    def __init__(self) -> None:
        self.refusal: StorageError | None = None
        """Raised by `check_writable`."""
        self.waiting: list[tuple[Topic, int, Callable[[StorageError | None], None]]] = []
        self.synced_seqs: list[int] = []
        """`synced_seq` at each call of `synced`."""

    def check_writable(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def when_confirmed(
        self, topic: Topic, next_seq: int, done: Callable[[StorageError | None], None]
    ) -> None:
        assert topic.log.next_seq == next_seq
        self.waiting.append((topic, next_seq, done))

    def synced(self, topic: Topic) -> None:
        assert topic.store is not None
        self.synced_seqs.append(topic.store.log.synced_seq)

    def confirm(self, topic: Topic, count: int | None = None) -> None:
        """Confirms the next `count` messages of a topic, or all."""
        assert isinstance(topic, ReplicatedTopic)
        seq = topic.log.next_seq if count is None else topic.log.high_watermark + count
        topic.set_high_watermark(seq)
        self._end(topic, seq, None)

    def fail(self, topic: Topic, failure: StorageError) -> None:
        """Fails all publishes to a topic that wait."""
        self._end(topic, topic.log.next_seq, failure)

    def _end(self, topic: Topic, seq: int, failure: StorageError | None) -> None:
        ended = [each for each in self.waiting if each[0] is topic and each[1] <= seq]
        self.waiting = [each for each in self.waiting if each not in ended]
        for _, _, done in ended:
            done(failure)


class IgnoringObserver:
    """A `StoreObserver` that does nothing."""

    def topic_created(self, name: str, store: TopicStore) -> None: ...

    def topic_removed(self, name: str, log_id: str) -> None: ...

    def appended(self, store: TopicStore) -> None: ...

    def journal_written(self, store: TopicStore) -> None: ...

    def segment_removed(self, store: TopicStore, first_seq: int) -> None: ...

    def damage_found(self, store: TopicStore) -> None: ...
