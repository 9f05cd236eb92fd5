"""Periodic polling of the whole cluster, for the charts and the pages with lists.

All open browsers share one poll, so that their number does not matter to the nsqds. After a change,
the state is refreshed at once.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.admin_api.cluster import Cluster, Node, NodeStats, UpstreamError, warning_text
from penstock.common.errors import HttpRequestError
from penstock.common.logs import Logger
from penstock.nsqadmin.metrics_store import MetricsStore

__all__ = ["ClusterState", "Watcher"]

# Idle time per poll time: in large clusters, polling takes at most 1/25 of the time.
IDLE_PER_POLL = 24

# Maximum age of the state that pages show if periodic polling is off.
STATE_AGE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Nodes, topics and channels of the cluster at one moment, without clients."""

    taken_at: float = 0.0
    """Monotonic time in seconds."""
    topics: list[str] = field(default_factory=list)
    """All topic names, including topics that no node has."""
    nodes: list[Node] = field(default_factory=list)
    answers: list[NodeStats] = field(default_factory=list)
    failures: list[HttpRequestError] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """Daemons that did not respond; empty if all did."""
        return warning_text(self.failures)


class Watcher:
    """Polls one cluster and stores its metrics."""

    def __init__(self, cluster: Cluster, log: Logger, *, interval_seconds: float) -> None:
        """An interval of 0 turns periodic polling off."""
        self.metrics_store = MetricsStore(interval_seconds)
        self.interval_seconds = interval_seconds
        self._cluster = cluster
        self._log = log
        self._latest: ClusterState | None = None
        self._refresh_task: asyncio.Task[ClusterState] | None = None
        self._last_problem = ""
        self._poll_seconds = 0.0
        self._period_seconds = 0.0  # from one poll to the next

    async def run(self) -> None:
        """Poll until cancelled."""
        while self.interval_seconds:
            started = time.monotonic()
            failures = await self._sample()
            took = time.monotonic() - started
            if not any(each.timed_out for each in failures):  # an idle wait is no load
                self._poll_seconds = took
            idle = max(self.interval_seconds - took, self._poll_seconds * IDLE_PER_POLL, 0.0)
            self._period_seconds = took + idle
            await asyncio.sleep(idle)

    async def state(self) -> ClusterState:
        """The latest state, or a new one if it is too old. Raises UpstreamError."""
        latest = self._latest
        if latest is None or time.monotonic() - latest.taken_at > self._state_age_seconds_max:
            return await self.refresh()
        return latest

    async def refresh(self) -> ClusterState:
        """Poll the cluster now. Concurrent callers share one poll. Raises UpstreamError."""
        if self._refresh_task is None:
            self._refresh_task = asyncio.get_running_loop().create_task(self._poll())
            self._refresh_task.add_done_callback(self._on_refreshed)
        return await asyncio.shield(self._refresh_task)

    async def refresh_after_change(self) -> None:
        """Poll the cluster, but not as part of a poll that began before the change. Errors are only
        logged; the next page shows them."""
        if self._refresh_task is not None:
            await asyncio.wait([self._refresh_task])
        try:
            await self.refresh()
        except UpstreamError as failure:
            self._log_problem(str(failure))

    @property
    def _state_age_seconds_max(self) -> float:
        return 2 * max(self.interval_seconds, self._period_seconds) or STATE_AGE_SECONDS_MAX

    async def _sample(self) -> Sequence[HttpRequestError]:
        """Poll once and add a sample to the metrics. Returns the failed requests."""
        try:
            state = await self.refresh()
        except UpstreamError as failure:
            self._log_problem(str(failure))
            return failure.failures
        self._log_problem(state.warning)
        self.metrics_store.add_sample(state.answers, time.time())
        return state.failures

    async def _poll(self) -> ClusterState:
        query = self._cluster.new_query()
        topics, nodes = await asyncio.gather(query.topics(), query.nodes())
        answers = await query.available_stats(nodes)
        self._latest = ClusterState(time.monotonic(), topics, nodes, answers, query.failures)
        return self._latest

    def _on_refreshed(self, task: "asyncio.Task[ClusterState]") -> None:
        self._refresh_task = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the callers of refresh() got it

    def _log_problem(self, problem: str) -> None:
        """Log a problem when it appears or changes, not at every poll."""
        if problem and problem != self._last_problem:
            self._log.warning("%s", problem)
        self._last_problem = problem
