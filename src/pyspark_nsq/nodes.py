"""Which nodes have which topics: asked of lookupds and of the nsqds themselves.

A node is known by its node id, not by its address: it may come back at another one, and another may
come at its own. Two nodes with one id cannot be told apart, and are refused.
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

# How many nodes are asked at once.
THREADS_MAX = 16

# For how long it is taken for granted which nodes there are. What they have is always asked.
KNOWN_SECONDS = 1.0

Place: TypeAlias = tuple[str, str]
"""The base URL of an nsqd, and a topic."""

T = TypeVar("T")
R = TypeVar("R")


class TopicLogLocation(NamedTuple):
    """A log, and the base URL of the nsqd that has it."""

    base: str
    log: TopicLogResponse


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """What has been found, and who could not be asked, and why."""

    logs: Mapping[TopicNode, TopicLogLocation]
    failures: tuple[Error, ...] = ()


class _Known(NamedTuple):
    topics: Topics
    at: float
    places: list[Place]
    failures: list[Error]


class Nodes:
    """The nodes that `access` leads to."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._api = access.http_api()
        self._known: _Known | None = None
        self._silent_lookupds: set[str] = set()

    def survey(self, topics: Topics) -> ClusterSnapshot:
        """Asks all nodes. Raises NotConnectedError if there are some and none can be asked, and
        ConfigError if two have one id."""
        places, trouble = self._places(topics)
        failures = list(trouble)
        outcomes = _at_once(self._log_at, places)
        logs: dict[TopicNode, TopicLogLocation] = {}
        for (base, topic), outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, Error):
                failures.append(outcome)
            elif outcome is not None:
                _add(logs, TopicNode(topic, outcome.node_id), TopicLogLocation(base, outcome))
        unique = {str(failure): failure for failure in failures}
        if unique and all(isinstance(outcome, Error) for outcome in outcomes):
            raise NotConnectedError("; ".join(unique))
        return ClusterSnapshot(logs, tuple(unique.values()))

    def history(self, base: str, topic: str) -> History:
        """Of a topic, at the nsqd with this base URL."""
        return History(self._api, base, topic)

    def topics(self) -> list[str]:
        """Names of all topics with a log, as far as anybody can say."""
        return self._matching(".*", [])

    def tcp_addresses(self) -> list[str]:
        """Where the nodes take connections of NSQ's protocol: any node will do for publishing.

        Raises HttpRequestError or NotConnectedError if nobody can say.
        """
        asked = _at_once(self._tcp_address_of, self._access.nsqds)
        found = [each for each in asked if isinstance(each, str)]
        found += [node.tcp_address for node in self._registered_nodes("/nodes")]
        failures = [each for each in asked if isinstance(each, Error)]
        for failure in failures:
            log.warning("%s", failure)
        if not found:
            why = "; ".join(map(str, failures)) or "no lookupd knows of one"
            raise NotConnectedError(f"no nsqd can be used: {why}")
        return list(dict.fromkeys(found))

    def bases(self) -> list[str]:
        """The base URLs of all nodes, whatever topics they have. Raises NotConnectedError if no
        lookupd can be asked."""
        known = [*self._access.nsqds, *map(_http_base, self._registered_nodes("/nodes"))]
        return list(dict.fromkeys(known))

    def size_max(self) -> int | None:
        """The largest message that the nodes take, if one of them tells."""
        for base in self.bases():
            try:
                return self._api.get_json(base, "/config/max_msg_size", int)
            except HttpRequestError:
                continue
        return None

    # Within.

    def _places(self, topics: Topics) -> tuple[list[Place], list[Error]]:
        """Base URLs and topics that may be there, and who could not say; as it was a moment ago,
        because an idle stream asks a hundred times a second."""
        known, now = self._known, time.monotonic()
        if known is None or known.topics != topics or now - known.at >= KNOWN_SECONDS:
            known = self._known = _Known(topics, now, *self._find_places(topics))
        return known.places, known.failures

    def _find_places(self, topics: Topics) -> tuple[list[Place], list[Error]]:
        failures: list[Error] = []
        wanted = topics.names or self._matching(topics.pattern, failures)
        places = [(base, topic) for base in self._access.nsqds for topic in wanted]
        if self._access.lookupds:
            for topic in wanted:
                producers = self._registered_nodes("/lookup", topic=topic)
                places += [(_http_base(each), topic) for each in producers]
        return list(dict.fromkeys(places)), failures

    def _matching(self, pattern: str, failures: list[Error]) -> list[str]:
        answers = [
            *_at_once(self._topics_of_nsqd, self._access.nsqds),
            *_at_once(self._topics_of_lookupd, self._access.lookupds),
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
        """What the lookupds know together. Raises NotConnectedError if none answers."""
        lookupds = self._access.lookupds
        answers = _at_once(lambda base: self._api.registered_nodes(base, path, **args), lookupds)
        failed = {
            base: answer
            for base, answer in zip(lookupds, answers, strict=True)
            if isinstance(answer, Error)
        }
        if failed and len(failed) == len(answers):
            raise NotConnectedError(
                "no lookupd can be asked: " + "; ".join(map(str, failed.values()))
            )
        for base in failed.keys() - self._silent_lookupds:
            log.warning("the other lookupds are asked alone: %s", failed[base])
        self._silent_lookupds = set(failed)
        return [each for found in answers if not isinstance(found, Error) for each in found]

    def _log_at(self, place: Place) -> TopicLogResponse | None:
        return self.history(*place).log()

    def _tcp_address_of(self, base: str) -> str:
        info = self._api.get_json(base, "/info", InfoResponse)
        return f"{host_of(base.partition('://')[2])}:{info.tcp_port}"


def _add(logs: dict[TopicNode, TopicLogLocation], key: TopicNode, found: TopicLogLocation) -> None:
    other = logs.get(key)
    # A node that is named and found as well, by two names of its host, shows one log.
    if other is not None and other.log.first_seq != found.log.first_seq:
        raise ConfigError(
            f"{other.base} and {found.base} both have node id {key.node}: "
            "give each nsqd an id of its own (--node-id)"
        )
    logs.setdefault(key, found)


def _at_once(ask: Callable[[T], R], items: Iterable[T]) -> list[R | Error]:
    """The answers in order; what was raised, if it was expected, takes an answer's place."""

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
