"""Looks at the whole cluster, again and again.

What it sees feeds the charts, and is what the pages with long lists show, so that a hundred open
browsers cost the nsqds no more than one. Whoever has changed something has it looked at afresh.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.admin_api.cluster import Cluster, Node, NodeStats, UpstreamError, warning_text
from penstock.common.errors import HttpRequestError
from penstock.common.logs import Logger
from penstock.nsqadmin.metrics_store import Chronicle

__all__ = ["Snapshot", "Watcher"]

# Asking takes no more than a twenty-fifth of the time, however many topics there are.
REST_PER_WORK = 24

# How old what is shown may be, where nothing is looked at in between.
AGE_SECONDS_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment, without the single clients."""

    taken_at: float = 0.0
    """In seconds of the monotonic clock."""
    topics: list[str] = field(default_factory=list)
    """All names, also of topics that no node has."""
    nodes: list[Node] = field(default_factory=list)
    answers: list[NodeStats] = field(default_factory=list)
    failures: list[HttpRequestError] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """What did not answer; empty if all did."""
        return warning_text(self.failures)


class Watcher:
    """Watches one cluster."""

    def __init__(self, cluster: Cluster, log: Logger, *, interval_seconds: float) -> None:
        """With an interval of 0 it looks only when it is asked to."""
        self.chronicle = Chronicle(interval_seconds)
        self.interval_seconds = interval_seconds
        self._cluster = cluster
        self._log = log
        self._latest: Snapshot | None = None
        self._looking: asyncio.Task[Snapshot] | None = None
        self._last_trouble = ""
        self._work_seconds = 0.0
        self._period_seconds = 0.0  # from one look to the next

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while self.interval_seconds:
            started = time.monotonic()
            failures = await self._observe()
            took = time.monotonic() - started
            if not any(each.timed_out for each in failures):  # who did not answer had no work
                self._work_seconds = took
            rest = max(self.interval_seconds - took, self._work_seconds * REST_PER_WORK, 0.0)
            self._period_seconds = took + rest
            await asyncio.sleep(rest)

    async def snapshot(self) -> Snapshot:
        """The cluster as it was a moment ago. Raises UpstreamError."""
        latest = self._latest
        if latest is None or time.monotonic() - latest.taken_at > self._age_seconds_max:
            return await self.refresh()
        return latest

    async def refresh(self) -> Snapshot:
        """The cluster as it is now. Raises UpstreamError. Those who ask at the same time share
        the answer."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    async def refresh_after_change(self) -> None:
        """Looks anew, and not with those who began to look before; a failure shows later."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        try:
            await self.refresh()
        except UpstreamError as failure:
            self._tell(str(failure))

    @property
    def _age_seconds_max(self) -> float:
        return 2 * max(self.interval_seconds, self._period_seconds) or AGE_SECONDS_MAX

    async def _observe(self) -> Sequence[HttpRequestError]:
        """Looks once, for the charts. Returns what did not answer."""
        try:
            snapshot = await self.refresh()
        except UpstreamError as failure:
            self._tell(str(failure))
            return failure.failures
        self._tell(snapshot.warning)
        self.chronicle.observe(snapshot.answers, time.time())
        return snapshot.failures

    async def _look(self) -> Snapshot:
        query = self._cluster.new_query()
        topics, nodes = await asyncio.gather(query.topics(), query.nodes())
        answers = await query.available_stats(nodes)
        self._latest = Snapshot(time.monotonic(), topics, nodes, answers, query.failures)
        return self._latest

    def _looked(self, task: "asyncio.Task[Snapshot]") -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # Whoever asked has been told; nobody else need be.

    def _tell(self, trouble: str) -> None:
        """Says it once, not at every look."""
        if trouble and trouble != self._last_trouble:
            self._log.warning("%s", trouble)
        self._last_trouble = trouble
