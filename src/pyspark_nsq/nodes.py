"""The nodes of a cluster, found directly or through nsqlookupd, and the logs of their topics.

A log is identified by its log id. The address of its node may change, and node ids may be equal.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from penstock import __version__
from penstock.admin_api.models import (
    InfoResponse,
    RegisteredNode,
    TopicLogSummary,
    TopicsLogResponse,
)
from penstock.common.addresses import host_of
from penstock.common.errors import ConfigError, Error, HttpRequestError, NotConnectedError
from penstock.net.http_client.messages import without_secrets
from pyspark_nsq.history import History
from pyspark_nsq.offsets import LogExtent, LogKey
from pyspark_nsq.options import Access, Topics

__all__ = ["ClusterSnapshot", "Nodes", "TopicLogLocation", "ask_all", "locate_logs"]

log = logging.getLogger("pyspark_nsq")

# Interval of requests to a new leader that waits for the other members.
CONFIRMATION_SECONDS = 0.1

# Maximum nodes asked at the same time.
THREADS_MAX = 16

T = TypeVar("T")
R = TypeVar("R")


class TopicLogLocation(NamedTuple):
    """The log of a topic, and the base URL and the id of its nsqd."""

    base: str
    node_id: int
    log: TopicLogSummary


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The logs of all reachable nodes, and the failures of the others."""

    logs: Mapping[LogKey, TopicLogLocation]
    failures: tuple[Error, ...] = ()
    has_answer: bool = True
    """Whether at least one node has answered, or there are none."""
    deleted: Mapping[LogKey, TopicLogLocation] = field(default_factory=dict)
    """Logs that were deleted since the nodes were first asked."""

    def require_answer(self) -> None:
        """Raises NotConnectedError if all nodes have failed."""
        if not self.has_answer:
            raise NotConnectedError("; ".join(map(str, self.failures)))

    def extents(self) -> dict[LogKey, LogExtent]:
        """Node and sequence numbers of each log, for `NodeIdOffsets.convert`."""
        return {
            key: LogExtent(found.base, found.node_id, found.log.first_seq, found.log.next_seq)
            for key, found in self.logs.items()
        }


class Nodes:
    """The nodes that `access` names, and those that its nsqlookupds know."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._api = access.http_api()
        self._failed_lookupds: set[str] = set()

    def snapshot(self, topics: Topics) -> ClusterSnapshot:
        """Asks all nodes for their logs, with one request each. Raises NotConnectedError if all of
        them fail, and ConfigError if an nsqd has no catalog of its logs."""
        bases = self.bases_of(topics)
        answers = ask_all(self.catalog, bases)
        failures = [each for each in answers if isinstance(each, Error)]
        logs: dict[LogKey, TopicLogLocation] = {}
        is_wanted = topics.matcher()
        for base, answer in zip(bases, answers, strict=True):
            if not isinstance(answer, Error):
                locate_logs(logs, base, answer.node_id, answer.topics, is_wanted)
        snapshot = ClusterSnapshot(
            logs, tuple(failures), has_answer=not failures or len(failures) < len(answers)
        )
        snapshot.require_answer()
        return snapshot

    def catalog(self, base: str, since: str = "", wait_seconds: float = 0.0) -> TopicsLogResponse:
        """The logs of one nsqd that have changed since the version `since`, or all. If none has
        changed, nsqd answers after `wait_seconds`. Raises HttpRequestError, and ConfigError if nsqd
        does not have this request.

        If nsqd has just taken over a replicated node, the request is repeated until the other
        members have confirmed its messages.
        """
        args = {"since": since, "wait": f"{wait_seconds:g}s"}
        deadline = time.monotonic() + self.request_seconds
        answer = self._api.get(base, "/topics/log", **args)
        while answer.error_code == "NOT_CONFIRMED" and time.monotonic() < deadline:
            time.sleep(CONFIRMATION_SECONDS)
            answer = self._api.get(base, "/topics/log", **args)
        if answer.status == 404:
            raise ConfigError(
                f"{without_secrets(answer.url)}: this nsqd has no catalog of its logs: upgrade it"
                f" to Penstock {__version__}, the version of this source, or later; or consume with"
                " mode=channel"
            )
        return answer.decode(TopicsLogResponse)

    def close(self) -> None:
        """Close idle connections. Requests are still possible."""
        self._api.close()

    @property
    def request_seconds(self) -> float:
        """Time limit of a request."""
        return self._access.request_seconds

    def history(self, base: str, topic: str) -> History:
        """The history of a topic at the nsqd with this base URL."""
        return History(self._api, base, topic)

    def topics(self) -> list[str]:
        """Names of all topics that have a log. Raises NotConnectedError if all nodes fail."""
        return sorted({key.topic for key in self.snapshot(Topics(pattern=".*")).logs})

    def bases_of(self, topics: Topics) -> list[str]:
        """Base URLs of the configured nodes, and of those that nsqlookupd knows to have at least
        one of the topics. Raises NotConnectedError if all nsqlookupds fail."""
        is_wanted = topics.matcher()
        registered = [
            _http_base(node)
            for node in self._registered_nodes()
            if any(map(is_wanted, _registered_topics(node)))
        ]
        return list(dict.fromkeys([*self._access.nsqds, *registered]))

    def tcp_addresses(self) -> list[str]:
        """TCP addresses of all nodes. Raises NotConnectedError if there are none."""
        asked = ask_all(self._tcp_address_of, self._access.nsqds)
        found = [each for each in asked if isinstance(each, str)]
        found += [node.tcp_address for node in self._registered_nodes()]
        failures = [each for each in asked if isinstance(each, Error)]
        for failure in failures:
            log.warning("%s", failure)
        if not found:
            why = "; ".join(map(str, failures)) or "nsqlookupd knows no nsqd"
            raise NotConnectedError(f"no nsqd can be used: {why}")
        return list(dict.fromkeys(found))

    def bases(self) -> list[str]:
        """Base URLs of all nodes. Raises NotConnectedError if all nsqlookupds fail."""
        known = [*self._access.nsqds, *map(_http_base, self._registered_nodes())]
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

    def _registered_nodes(self) -> list[RegisteredNode]:
        """Nodes that any nsqlookupd knows. Raises NotConnectedError if all nsqlookupds fail."""
        lookupds = self._access.lookupds
        answers = ask_all(lambda base: self._api.registered_nodes(base, "/nodes"), lookupds)
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

    def _tcp_address_of(self, base: str) -> str:
        info = self._api.get_json(base, "/info", InfoResponse)
        return f"{host_of(base.partition('://')[2])}:{info.tcp_port}"


def locate_logs(
    logs: dict[LogKey, TopicLogLocation],
    base: str,
    node_id: int,
    found: Iterable[TopicLogSummary],
    is_wanted: Callable[[str], bool],
) -> None:
    """Add the logs of a node whose topics are wanted.

    If a log is known already, the node has two addresses, and the first one is used.
    """
    for each in found:
        if is_wanted(each.topic):
            key = LogKey(each.topic, each.log_id)
            logs.setdefault(key, TopicLogLocation(base, node_id, each))


def ask_all(ask: Callable[[T], R], items: Iterable[T]) -> list[R | Error]:
    """Asks for all items at the same time; a failed item's error is its result. Raises
    ConfigError."""

    def outcome(item: T) -> R | Error:
        try:
            return ask(item)
        except ConfigError:
            raise
        except Error as failure:
            return failure

    asked = list(items)
    if len(asked) < 2:
        return list(map(outcome, asked))
    with ThreadPoolExecutor(min(len(asked), THREADS_MAX)) as pool:
        return list(pool.map(outcome, asked))


def _http_base(node: RegisteredNode) -> str:
    return f"http://{node.http_address}"


def _registered_topics(node: RegisteredNode) -> list[str]:
    """The topics of a node, without those that are being deleted from it."""
    registered = node.topics or []
    tombstones = node.tombstones or [False] * len(registered)
    return [name for name, is_gone in zip(registered, tombstones, strict=False) if not is_gone]
