"""A local copy of the nodes' catalogs, for the driver of a stream.

A thread per node keeps a copy of the node's catalog, the list of its logs with their ends. While
nothing changes, the thread has one long poll open, and the copy is current. After a change it sends
no request until the query asks for a snapshot: a busy node is asked once per micro-batch, however
many messages it gets.

nsqlookupd is asked only for the list of nodes. If a node fails, its thread retries with increasing
delays.
"""

import logging
import threading
import time
from collections.abc import Callable

from penstock.admin_api.models import TopicLogSummary, TopicsLogResponse
from penstock.common.errors import ConfigError, Error, NotConnectedError
from pyspark_nsq.nodes import ClusterSnapshot, Nodes, TopicLogLocation, locate_logs
from pyspark_nsq.offsets import LogKey
from pyspark_nsq.options import Topics

__all__ = ["ClusterCatalog", "NodeCatalog"]

log = logging.getLogger("pyspark_nsq")

LONG_POLL_SECONDS = 20.0

# Minimum interval between two requests for the list of nodes.
NODES_SECONDS = 2.0

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 10.0

# Status of nsqd if it has too many long polls, and the interval between requests without one.
TOO_MANY_READERS = 503
CROWDED_SECONDS = 1.0

# A change that is this new is used without another request.
FRESH_SECONDS = 0.1


class NodeCatalog:
    """The copy of one node's catalog, and the thread that updates it. `changed` guards all
    fields."""

    def __init__(
        self,
        base: str,
        nodes: Nodes,
        is_wanted: Callable[[str], bool],
        changed: threading.Condition,
    ) -> None:
        self.base = base
        self.node_id = -1
        self.topics: dict[str, TopicLogSummary] = {}
        self.deleted: dict[LogKey, TopicLogLocation] = {}
        self.failure: Error | None = None
        self.is_due = True
        """Whether a snapshot waits for the response to an immediate request."""
        self.is_parked = False
        """Whether the copy has changed, and the thread waits until the query has used it."""
        self.revision = 0
        self._nodes = nodes
        self._is_wanted = is_wanted
        self._changed = changed
        self._is_stopping = False
        self._answered_at = 0.0
        self._version = ""
        self._poll_seconds = min(LONG_POLL_SECONDS, nodes.request_seconds / 2)
        threading.Thread(target=self._run, name=f"catalog {base}", daemon=True).start()

    def request_update(self, *, fresh_seconds: float) -> None:
        """Make the copy current, unless it is, or was updated within `fresh_seconds`. The caller
        holds the lock."""
        if self.is_parked and time.monotonic() - self._answered_at >= fresh_seconds:
            self.is_due = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the thread end after its current request. The caller holds the lock."""
        self._is_stopping = True
        self._changed.notify_all()

    # Methods of the thread.

    def _run(self) -> None:
        wait_seconds, retry_seconds = 0.0, RETRY_SECONDS_MIN
        while not self._is_stopping:
            try:
                reply = self._nodes.catalog(self.base, self._version, wait_seconds)
            except Error as failure:
                if wait_seconds and getattr(failure, "status", None) == TOO_MANY_READERS:
                    wait_seconds = 0.0  # too many long polls: ask without one
                    self._pause(CROWDED_SECONDS)
                    continue
                self._set_failure(failure, retry_seconds)
                wait_seconds, retry_seconds = 0.0, min(2 * retry_seconds, RETRY_SECONDS_MAX)
                continue
            retry_seconds = RETRY_SECONDS_MIN
            wait_seconds = 0.0 if self._apply(reply) else self._poll_seconds
        self._nodes.close()

    def _apply(self, reply: TopicsLogResponse) -> bool:
        """Update the copy. After a change, wait until the query needs the next one. Returns whether
        anything has changed."""
        with self._changed:
            is_changed = bool(reply.full or reply.topics or reply.removed or self.failure)
            if reply.full:
                self.topics = {}
            else:
                self._add_deleted(reply)
            for name in reply.removed:
                self.topics.pop(name, None)
            self.topics.update((each.topic, each) for each in reply.topics)
            self.node_id, self._version, self.failure = reply.node_id, reply.version, None
            self._end_request(is_changed=is_changed)
            if is_changed:
                self.is_parked = True
                self._changed.wait_for(lambda: self.is_due or self._is_stopping)
                self.is_parked = False
            return is_changed

    def _add_deleted(self, reply: TopicsLogResponse) -> None:
        """Note deleted logs. Only a response that continues the last one proves a deletion: after
        a restart, another nsqd may have the address."""
        new_ids = {each.topic: each.log_id for each in reply.topics}
        for name in (*reply.removed, *new_ids):
            old = self.topics.get(name)
            if old is not None and old.log_id != new_ids.get(name) and self._is_wanted(name):
                key = LogKey(name, old.log_id)
                self.deleted[key] = TopicLogLocation(self.base, self.node_id, old)

    def _set_failure(self, failure: Error, retry_seconds: float) -> None:
        with self._changed:
            is_new = self.failure is None
            self.failure, self.topics, self._version = failure, {}, ""
            self._end_request(is_changed=is_new)
        self._pause(retry_seconds)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, seconds)

    def _end_request(self, *, is_changed: bool) -> None:
        self.is_due = False
        self._answered_at = time.monotonic()
        self.revision += is_changed
        self._changed.notify_all()


class ClusterCatalog:
    """The logs of all nodes that have the topics. Create it on the driver only: it starts
    threads."""

    def __init__(self, nodes: Nodes, topics: Topics) -> None:
        self._nodes = nodes
        self._topics = topics
        self._is_wanted = topics.matcher()
        self._changed = threading.Condition()
        self._catalogs: dict[str, NodeCatalog] = {}
        self._nodes_due_at = 0.0
        self._lookup_failure: Error | None = None
        self._merged: tuple[dict[str, int], ClusterSnapshot] | None = None

    def snapshot(self, *, fresh: bool = False) -> ClusterSnapshot:
        """The current logs; the same object if nothing has changed.

        A change of the last FRESH_SECONDS may be missing, unless `fresh`. Raises NotConnectedError
        if nsqlookupd has never answered, and ConfigError if an nsqd has no catalog.
        """
        self._update_nodes()
        with self._changed:
            for each in self._catalogs.values():
                each.request_update(fresh_seconds=0.0 if fresh else FRESH_SECONDS)
            self._changed.wait_for(lambda: not any(map(_is_due, self._catalogs.values())))
            return self._merge()

    def wait_for_change(self, known: ClusterSnapshot, seconds: float) -> None:
        """Wait until the logs differ from a snapshot, or until a node must be asked again, at most
        `seconds`."""
        with self._changed:
            # A topic of other queries may change all the time; this limits the requests.
            if any(each.is_parked for each in self._catalogs.values()):
                seconds = min(seconds, FRESH_SECONDS)
            self._changed.wait_for(lambda: self._is_changed(known), seconds)

    def close(self) -> None:
        """Stop the threads; they end after their current requests."""
        with self._changed:
            for each in self._catalogs.values():
                each.stop()

    def _update_nodes(self) -> None:
        if time.monotonic() >= self._nodes_due_at:
            try:
                self._set_nodes(self._nodes.bases_of(self._topics))
                self._lookup_failure = None
            except NotConnectedError as failure:
                if self._lookup_failure is None and self._catalogs:
                    log.warning("continuing with the known nodes: %s", failure)
                self._lookup_failure = failure
            self._nodes_due_at = time.monotonic() + NODES_SECONDS
        if self._lookup_failure is not None and not self._catalogs:
            raise self._lookup_failure

    def _set_nodes(self, bases: list[str]) -> None:
        with self._changed:
            for base in self._catalogs.keys() - set(bases):
                self._catalogs.pop(base).stop()
            for base in bases:
                if base not in self._catalogs:
                    self._catalogs[base] = NodeCatalog(
                        base, self._nodes, self._is_wanted, self._changed
                    )

    def _revisions(self) -> dict[str, int]:
        return {base: each.revision for base, each in self._catalogs.items()}

    def _is_changed(self, known: ClusterSnapshot) -> bool:
        return self._merged is not None and (
            self._merged[1] is not known or self._merged[0] != self._revisions()
        )

    def _merge(self) -> ClusterSnapshot:
        revisions = self._revisions()
        if self._merged is None or self._merged[0] != revisions:
            self._merged = revisions, self._merge_all()
        return self._merged[1]

    def _merge_all(self) -> ClusterSnapshot:
        logs: dict[LogKey, TopicLogLocation] = {}
        deleted: dict[LogKey, TopicLogLocation] = {}
        failures: list[Error] = []
        for base, each in self._catalogs.items():
            if isinstance(each.failure, ConfigError):
                raise each.failure
            if each.failure is not None:
                failures.append(each.failure)
            locate_logs(logs, base, each.node_id, each.topics.values(), self._is_wanted)
            deleted |= each.deleted
        has_answer = not failures or len(failures) < len(self._catalogs)
        return ClusterSnapshot(logs, tuple(failures), has_answer, deleted)


def _is_due(catalog: NodeCatalog) -> bool:
    return catalog.is_due
