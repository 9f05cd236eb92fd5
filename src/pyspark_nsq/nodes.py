"""The nodes of a cluster, found directly or through nsqlookupd, and their logs of the topics.

A node is identified by its node id, not by its address, which may change. Two nodes with the same
id are an error.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.admin_api.models import (
    InfoResponse,
    RegisteredNode,
    StatsResponse,
    TopicLogResponse,
    TopicsResponse,
)
from penstock.common import names
from penstock.common.addresses import host_of
from penstock.common.errors import ConfigError, Error, HttpRequestError, NotConnectedError
from pyspark_nsq.history import History
from pyspark_nsq.offsets import TopicNode
from pyspark_nsq.options import Access, Topics

__all__ = ["ClusterSnapshot", "Nodes", "TopicLogLocation"]

log = logging.getLogger("pyspark_nsq")

# Maximum nodes asked at the same time.
THREADS_MAX = 16

# How long the list of nodes is cached. Their logs are asked for each time.
NODES_CACHE_SECONDS = 1.0

NodeTopic: TypeAlias = tuple[str, str]
"""The base URL of an nsqd, and a topic."""

T = TypeVar("T")
R = TypeVar("R")


class TopicLogLocation(NamedTuple):
    """The log of a topic, and the base URL of its nsqd."""

    base: str
    log: TopicLogResponse


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The logs of all reachable nodes, and the failures of the others."""

    logs: Mapping[TopicNode, TopicLogLocation]
    failures: tuple[Error, ...] = ()


class _CachedNodes(NamedTuple):
    topics: Topics
    at: float
    node_topics: list[NodeTopic]
    failures: list[Error]


class Nodes:
    """The nodes that `access` names, and those that its nsqlookupds know."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._api = access.http_api()
        self._cached: _CachedNodes | None = None
        self._failed_lookupds: set[str] = set()

    def snapshot(self, topics: Topics) -> ClusterSnapshot:
        """Asks all nodes for their logs. Raises NotConnectedError if all of them fail, and
        ConfigError if two nodes have the same id."""
        node_topics, lookup_failures = self._node_topics(topics)
        failures = list(lookup_failures)
        outcomes = _ask_all(self._log_at, node_topics)
        logs: dict[TopicNode, TopicLogLocation] = {}
        for (base, topic), outcome in zip(node_topics, outcomes, strict=True):
            if isinstance(outcome, Error):
                failures.append(outcome)
            elif outcome is not None:
                _add(logs, TopicNode(topic, outcome.node_id), TopicLogLocation(base, outcome))
        unique = {str(failure): failure for failure in failures}
        if unique and all(isinstance(outcome, Error) for outcome in outcomes):
            raise NotConnectedError("; ".join(unique))
        return ClusterSnapshot(logs, tuple(unique.values()))

    def history(self, base: str, topic: str) -> History:
        """The history of a topic at the nsqd with this base URL."""
        return History(self._api, base, topic)

    def topics(self) -> list[str]:
        """Names of all topics that have a log; daemons that fail are skipped."""
        return self._matching_topics(".*", [])

    def tcp_addresses(self) -> list[str]:
        """TCP addresses of all nodes. Raises NotConnectedError if there are none."""
        asked = _ask_all(self._tcp_address_of, self._access.nsqds)
        found = [each for each in asked if isinstance(each, str)]
        found += [node.tcp_address for node in self._registered_nodes("/nodes")]
        failures = [each for each in asked if isinstance(each, Error)]
        for failure in failures:
            log.warning("%s", failure)
        if not found:
            why = "; ".join(map(str, failures)) or "nsqlookupd knows no nsqd"
            raise NotConnectedError(f"no nsqd can be used: {why}")
        return list(dict.fromkeys(found))

    def bases(self) -> list[str]:
        """Base URLs of all nodes. Raises NotConnectedError if all nsqlookupds fail."""
        known = [*self._access.nsqds, *map(_http_base, self._registered_nodes("/nodes"))]
        return list(dict.fromkeys(known))

    def size_max(self) -> int | None:
        """Maximum size of a message at the first node that answers; None if all fail."""
        for base in self.bases():
            try:
                return self._api.get_json(base, "/config/max_msg_size", int)
            except HttpRequestError:
                continue
        return None

    # Internals.

    def _node_topics(self, topics: Topics) -> tuple[list[NodeTopic], list[Error]]:
        """Nodes that may have the topics, and the failures of daemons. Cached, because an idle
        stream asks a hundred times per second."""
        cached, now = self._cached, time.monotonic()
        if cached is None or cached.topics != topics or now - cached.at >= NODES_CACHE_SECONDS:
            cached = self._cached = _CachedNodes(topics, now, *self._find_node_topics(topics))
        return cached.node_topics, cached.failures

    def _find_node_topics(self, topics: Topics) -> tuple[list[NodeTopic], list[Error]]:
        failures: list[Error] = []
        wanted = topics.names or self._matching_topics(topics.pattern, failures)
        found = [(base, topic) for base in self._access.nsqds for topic in wanted]
        if self._access.lookupds:
            for topic in wanted:
                nodes = self._registered_nodes("/lookup", topic=topic)
                found += [(_http_base(node), topic) for node in nodes]
        return list(dict.fromkeys(found)), failures

    def _matching_topics(self, pattern: str, failures: list[Error]) -> list[str]:
        """Topics whose whole name matches; failures of daemons are appended to `failures`."""
        answers = [
            *_ask_all(self._topics_of_nsqd, self._access.nsqds),
            *_ask_all(self._topics_of_lookupd, self._access.lookupds),
        ]
        failures += [each for each in answers if isinstance(each, Error)]
        known = {topic for each in answers if not isinstance(each, Error) for topic in each}
        matches = re.compile(pattern).fullmatch
        return sorted(topic for topic in known if matches(topic) and not names.is_ephemeral(topic))

    def _topics_of_nsqd(self, base: str) -> list[str]:
        args = {"format": "json", "include_clients": "false"}
        stats = self._api.get_json(base, "/stats", StatsResponse, **args)
        return [topic.topic_name for topic in stats.topics or ()]

    def _topics_of_lookupd(self, base: str) -> list[str]:
        return self._api.get_json(base, "/topics", TopicsResponse).topics or []

    def _registered_nodes(self, path: str, **args: str) -> list[RegisteredNode]:
        """Nodes that any nsqlookupd knows. Raises NotConnectedError if all nsqlookupds fail."""
        lookupds = self._access.lookupds
        answers = _ask_all(lambda base: self._api.registered_nodes(base, path, **args), lookupds)
        failed = {
            base: answer
            for base, answer in zip(lookupds, answers, strict=True)
            if isinstance(answer, Error)
        }
        if failed and len(failed) == len(answers):
            raise NotConnectedError(
                "no nsqlookupd answered: " + "; ".join(map(str, failed.values()))
            )
        for base in failed.keys() - self._failed_lookupds:
            log.warning("nsqlookupd failed, using the others: %s", failed[base])
        self._failed_lookupds = set(failed)
        return [each for found in answers if not isinstance(found, Error) for each in found]

    def _log_at(self, node_topic: NodeTopic) -> TopicLogResponse | None:
        return self.history(*node_topic).log()

    def _tcp_address_of(self, base: str) -> str:
        info = self._api.get_json(base, "/info", InfoResponse)
        return f"{host_of(base.partition('://')[2])}:{info.tcp_port}"


def _add(logs: dict[TopicNode, TopicLogLocation], key: TopicNode, found: TopicLogLocation) -> None:
    other = logs.get(key)
    # The same node may be found under two names of its host; then the logs are equal.
    if other is not None and other.log.first_seq != found.log.first_seq:
        raise ConfigError(
            f"{other.base} and {found.base} both have node id {key.node}: "
            "give each nsqd its own --node-id"
        )
    logs.setdefault(key, found)


def _ask_all(ask: Callable[[T], R], items: Iterable[T]) -> list[R | Error]:
    """Asks for all items at the same time; a failed item's error is its result."""

    def outcome(item: T) -> R | Error:
        try:
            return ask(item)
        except Error as failure:
            return failure

    asked = list(items)
    if len(asked) < 2:
        return list(map(outcome, asked))
    with ThreadPoolExecutor(min(len(asked), THREADS_MAX)) as pool:
        return list(pool.map(outcome, asked))


def _http_base(node: RegisteredNode) -> str:
    return f"http://{node.http_address}"
