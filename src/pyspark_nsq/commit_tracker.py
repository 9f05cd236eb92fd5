"""The channel that records a query's progress on each node.

While the channel exists, nsqd retains messages that the query has not committed. The depth of the
channel is the query's lag.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.common.errors import HttpRequestError
from pyspark_nsq.errors import NotStoredError
from pyspark_nsq.history import History
from pyspark_nsq.nodes import Nodes, TopicLogLocation
from pyspark_nsq.offsets import LogKey

__all__ = ["CommitTracker"]

log = logging.getLogger("pyspark_nsq")


class CommitTracker:
    """Creates and moves the channel `channel` on all nodes. Does nothing if the name is empty."""

    def __init__(self, nodes: Nodes, channel: str) -> None:
        self._nodes = nodes
        self._channel = channel
        self._created: set[LogKey] = set()
        self._committed: dict[LogKey, int] = {}

    def create_channels(
        self, logs: Mapping[LogKey, TopicLogLocation], offsets: Mapping[LogKey, int]
    ) -> None:
        """Create missing channels. Raises HttpRequestError if a node refuses."""
        if not self._channel:
            return
        for key, found in logs.items():
            if key in offsets and key not in self._created:
                seq = max(found.log.first_seq, min(offsets[key], found.log.high_watermark))
                with _retry_next_batch("cannot create channel %s yet: %s", self._channel):
                    self._history(key, found).create_channel(self._channel, seq)
                    self._created.add(key)

    def commit(
        self, logs: Mapping[LogKey, TopicLogLocation], offsets: Mapping[LogKey, int]
    ) -> None:
        """Move the channels to these offsets. Unreachable nodes are updated by a later commit.

        Raises HttpRequestError if a node refuses, because the channel has a consumer.
        """
        for key in logs.keys() & offsets.keys() & self._created:
            if self._committed.get(key) != offsets[key]:
                with _retry_next_batch("cannot commit channel %s yet: %s", self._channel):
                    self._commit(self._history(key, logs[key]), offsets[key])
                    self._committed[key] = offsets[key]

    def _commit(self, history: History, seq: int) -> None:
        try:
            history.commit(self._channel, seq)
        except HttpRequestError as failure:
            if failure.status != 404:
                raise
            log.warning("channel %s was deleted; creating it again", self._channel)
            history.create_channel(self._channel, seq)

    def _history(self, key: LogKey, found: TopicLogLocation) -> History:
        return self._nodes.history(found.base, key.topic)


@contextmanager
def _retry_next_batch(text: str, channel: str) -> Iterator[None]:
    """Log a warning if the node is unreachable or has trimmed its log; the next batch retries."""
    try:
        yield
    except NotStoredError as failure:
        log.warning(text, channel, failure)
    except HttpRequestError as failure:
        if failure.status is not None and failure.status < 500:
            raise
        log.warning(text, channel, failure)
