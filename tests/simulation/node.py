"""An nsqd without sockets, threads and disk: the real engine, broker, storage and sessions.

`Node` builds them as `penstock.nsqd.daemon.Nsqd` does, with a simulated loop and clock. Files are
in memory and fail on request; fsyncs run when the simulation says so, instead of in threads.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast
from unittest.mock import patch

from tests.simulation.loop import SimulatedLoop
from tests.simulation.schedule import Setup

from penstock.broker.broker import Broker
from penstock.broker.engine import Engine
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.common.errors import StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.net.connection_limits import ConnectionLimits
from penstock.nsqd import metadata, tcp
from penstock.nsqd.auth import Authenticator
from penstock.nsqd.heartbeat import Timeouts
from penstock.nsqd.metadata import MetadataWriter
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.process_metrics import ErrorCounters
from penstock.nsqd.session import SessionServices
from penstock.nsqd.tcp import Clients, ClientServices
from penstock.protocol.events import Limits
from penstock.protocol.identify import ServerOffer
from penstock.storage import DataPath, GroupCommit, LogSettings, topic_storage
from penstock.storage.fsync import FsyncJob, FsyncTarget, fsync_now
from penstock.testing import FaultyFiles, ManualClock
from penstock.testing.bugs import raise_bug

__all__ = [
    "MSG_TIMEOUT_NS",
    "TIMEOUT_MAX_NS",
    "Node",
    "Observer",
    "simulated_environment",
    "try_syncs_in_turn",
]

DATA_PATH = "data"
MSG_TIMEOUT_NS = 4 * SECOND_NS
TIMEOUT_MAX_NS = 10 * SECOND_NS
HEARTBEAT_MS = 3_000

_OPTIONS = NsqdOptions()
_LOG = Logger("", LogLevel.FATAL)
_LIMITS = Limits(max_msg_size=200, max_body_size=2_000, max_rdy_count=300)
_OFFER = ServerOffer(
    max_rdy_count=300,
    msg_timeout_ms=MSG_TIMEOUT_NS // MILLISECOND_NS,
    max_msg_timeout_ms=TIMEOUT_MAX_NS // MILLISECOND_NS,
    heartbeat_interval_ms=HEARTBEAT_MS,
)
_TIMEOUTS = Timeouts(greeting_seconds=10, command_seconds=10)


class Observer(Protocol):
    """Receives the events of a node."""

    def storing(self, topic: Topic, bodies: list[bytes], due_ns: int) -> None:
        """These messages are being stored: after a crash, they may be stored or not."""

    def stored(self, topic: Topic, bodies: list[bytes], due_ns: int, first_seq: int) -> None:
        """The log has assigned sequence numbers from `first_seq` on."""

    def not_stored(self, topic: Topic, bodies: list[bytes]) -> None:
        """The disk refused these messages."""

    def topology_changed(self, topic: Topic) -> None:
        """A topic or channel was created or deleted."""


class _SteppedCommit(GroupCommit):
    """Fsyncs when the simulation calls `run_jobs`."""

    def __init__(self, loop: SimulatedLoop, *, is_slow: bool, sync_every: int) -> None:
        self._loop = loop
        self._is_slow = is_slow
        super().__init__(
            loop.call_soon, loop.call_later, sync_every=sync_every, report_bug=raise_bug
        )

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def _start_thread(self) -> None:
        """A simulation has no threads."""

    def _submit(self, log: FsyncTarget, job: FsyncJob) -> None:
        self._jobs.put((log, job))
        if not self._is_slow:
            self._loop.call_soon(self.run_jobs)

    def run_jobs(self) -> None:
        """Run all pending fsyncs."""
        while not self._jobs.empty():
            item = self._jobs.get()
            assert item is not None
            self._run(*item)

    def close(self) -> None:
        while self._running:
            self.run_jobs()
            self._apply_results()


Result = TypeVar("Result")


class _InlineExecutor(Executor):
    """Runs a function when it is submitted."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Node:
    """A simulated nsqd."""

    def __init__(
        self,
        setup: Setup,
        files: FaultyFiles,
        clock: ManualClock,
        loop: SimulatedLoop,
        observer: Observer,
        sample: Callable[[], float],
    ) -> None:
        """Raises StorageError if the data path cannot be opened."""
        self._observer = observer
        self._is_starting = True
        self._commit = _SteppedCommit(loop, is_slow=setup.disk_is_slow, sync_every=setup.sync_every)
        self._metadata = MetadataWriter(
            DATA_PATH,
            lambda: metadata.render(self.broker.topics.values()),
            _LOG,
            loop,
            _InlineExecutor(),
            files,
        )
        self._data_path = DataPath.open(
            DATA_PATH,
            LogSettings(
                max_bytes_per_file=setup.max_bytes_per_file,
                retention_time_ns=setup.retention_time_ns,
            ),
            files,
        )
        self._engine = Engine(
            BrokerSettings(
                node_id=setup.node_id,
                mem_queue_size=setup.mem_queue_size,
                max_msg_timeout_ns=TIMEOUT_MAX_NS,
                requeue_on_disconnect=setup.requeue_on_disconnect,
            ),
            self._data_path,
            loop,
            clock,
            sample=sample,
            commit=self._commit,
            listener=self,
            log=_LOG,
            report_bug=raise_bug,
            housekeeping_seconds=_OPTIONS.sync_timeout_ns / SECOND_NS,
        )
        self.broker: Broker = self._engine.broker
        if setup.node_id % 2:  # The default is to batch at first.
            self._engine.publisher.skip_batching(sys.maxsize)
        metadata.restore(DATA_PATH, self.broker, _LOG, files)
        self._is_starting = False
        self.clients = Clients()
        self.services = self._tcp_services(clock)
        self._engine.start()

    def _tcp_services(self, clock: Clock) -> ClientServices:
        session = SessionServices(
            broker=self.broker,
            publisher=self._engine.publisher,
            clock=clock,
            log=_LOG,
            offer=_OFFER,
            authenticator=_AUTHENTICATOR,
        )
        return ClientServices(
            session=session,
            limits=_LIMITS,
            timeouts=_TIMEOUTS,
            clients=self.clients,
            tls=None,
            tls_required=False,
            connection_limits=ConnectionLimits(),
            error_counters=ErrorCounters(),
            report_bug=raise_bug,
        )

    # Actions of operators, as the HTTP API does them.

    def store_publishes(self) -> None:
        """Write pending publishes."""
        self._engine.publisher.store()

    def save_metadata(self) -> None:
        """Raises StorageError."""
        failure = self._metadata.write_and_wait()
        if failure is not None:
            raise failure

    def sync(self) -> None:
        """Run the pending fsyncs of a slow disk."""
        self._commit.run_jobs()

    @property
    def is_syncing(self) -> bool:
        return self._commit.is_busy

    def stop(self) -> list[StorageError]:
        """Stop cleanly. Returns the errors."""
        self.broker.exit()
        self._engine.stop()
        failures: list[StorageError] = []
        for step in (self.save_metadata, self._commit.close):
            try:
                step()
            except StorageError as failure:
                failures.append(failure)
        failures += self.broker.close()
        for client in self.clients:
            client.close()
        try:
            self._data_path.close()
        except StorageError as failure:
            failures.append(failure)
        return failures

    # The engine's topology listener.

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None:
        if persistent:
            self._metadata.write_soon()
        if not self._is_starting:
            self._observer.topology_changed(topic)

    def topic_created(self, topic: Topic) -> None:
        pass


_AUTHENTICATOR = Authenticator(_OPTIONS, ManualClock(), _LOG)


@contextmanager
def simulated_environment(loop: SimulatedLoop, clock: Clock, observer: Observer) -> Iterator[None]:
    """Install the simulated loop, report publishes to the observer, and remove sources of
    nondeterminism: the duration of a turn, and threads.
    """
    asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", loop))
    try:
        with (
            patch.object(tcp, "monotonic", lambda: 0.0),
            patch.object(topic_storage, "fsync_in_parallel", try_syncs_in_turn),
            patch.object(Topic, "publish", _observed_publish(Topic.publish, clock, observer)),
        ):
            yield
    finally:
        asyncio._set_running_loop(None)


def _observed_publish(
    publish: Callable[[Topic, list[bytes], int], int], clock: Clock, observer: Observer
) -> Callable[..., int]:
    def observed(topic: Topic, bodies: list[bytes], defer_ns: int = 0) -> int:
        first_seq = topic.log.next_seq
        due_ns = clock.wall_ns() + defer_ns if defer_ns else 0
        observer.storing(topic, bodies, due_ns)

        def tell_result() -> None:
            if topic.log.next_seq != first_seq:
                observer.stored(topic, bodies, due_ns, first_seq)
            else:
                observer.not_stored(topic, bodies)

        try:
            unsynced_count = publish(topic, bodies, defer_ns)
        except StorageError:
            tell_result()
            raise
        tell_result()
        return unsynced_count

    return observed


def try_syncs_in_turn(targets: list[FsyncTarget]) -> None:
    for target in targets:
        try:
            fsync_now(target)
        except StorageError:
            continue  # it still needs it
