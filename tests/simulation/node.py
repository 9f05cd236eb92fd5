"""An nsqd without sockets, threads and disk: the real broker, log, sessions and connections.

`Node` is the daemon itself, `penstock.nsqd.daemon.Nsqd`, as far as it drives the broker; only what
it is put together from differs. Files are in memory and fail when they are told to, fsyncs run when
the simulation says so and not in a thread, and nsqd.dat is a file like the others.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast
from unittest.mock import patch

from tests.simulation.loop import SimulatedLoop
from tests.simulation.schedule import Setup

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.broker.topic import Topic
from penstock.common.bug_reports import BugReports
from penstock.common.clock import MILLISECOND_NS, SECOND_NS, Clock
from penstock.common.errors import StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.net.connection_limits import Admission
from penstock.nsqd import metadata, tcp
from penstock.nsqd.auth import Authenticator
from penstock.nsqd.daemon import SAVE_SECONDS, Nsqd
from penstock.nsqd.error_counters import Refusals
from penstock.nsqd.heartbeat import Patience
from penstock.nsqd.metadata_writer import DELAY_SECONDS
from penstock.nsqd.metadata_writer import RETRY_SECONDS as METADATA_RETRY_SECONDS
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.publisher import Batch, Publisher
from penstock.nsqd.session import SessionServices
from penstock.nsqd.tcp import Clients, TcpServices
from penstock.protocol.identify import ServerOffer
from penstock.protocol.limits import Limits
from penstock.storage import DataPath, GroupCommit, LogSettings, topic_storage
from penstock.storage.files import storage_error, write_all
from penstock.storage.fsync import FsyncJob, FsyncTarget, fsync_now
from penstock.testing import FaultyFiles, ManualClock
from penstock.testing.bugs import raise_bug

__all__ = ["MSG_TIMEOUT_NS", "TIMEOUT_MAX_NS", "Node", "Observer", "surroundings"]

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
_PATIENCE = Patience(greeting_seconds=10, command_seconds=10)


class Observer(Protocol):
    """Who is told what the node does."""

    def storing(self, topic: Topic, bodies: list[bytes], due_ns: int) -> None:
        """These are about to be stored: after a crash in between, they may be there or not."""

    def stored(self, topic: Topic, bodies: list[bytes], due_ns: int, first_seq: int) -> None:
        """The log has given them their numbers, from `first_seq` on."""

    def not_stored(self, topic: Topic, bodies: list[bytes]) -> None:
        """They could not be."""

    def topology_changed(self, topic: Topic) -> None:
        """A topic or one of its channels was made or deleted."""


class _ObservedPublisher(Publisher):
    def store_at_once(self) -> None:
        """From now on, and for good."""
        self._at_once_left = sys.maxsize

    def observe(self, observer: Observer, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock

    def publish(self, topic: Topic, bodies: list[bytes]) -> Batch | None:
        if not self._at_once_left:
            return super().publish(topic, bodies)
        with self._telling(topic, bodies):
            return super().publish(topic, bodies)

    def publish_deferred(self, topic: Topic, bodies: list[bytes], defer_ns: int) -> Batch | None:
        self.store()
        with self._telling(topic, bodies, defer_ns):
            return super().publish_deferred(topic, bodies, defer_ns)

    def _store_batch(self, topic: Topic, batch: Batch) -> None:
        with self._telling(topic, batch.bodies):
            super()._store_batch(topic, batch)

    @contextmanager
    def _telling(self, topic: Topic, bodies: list[bytes], defer_ns: int = 0) -> Iterator[None]:
        first_seq = topic.log.next_seq
        due_ns = self._clock.wall_ns() + defer_ns if defer_ns else 0
        bodies = [*bodies]  # which the publisher forgets
        self._observer.storing(topic, bodies, due_ns)
        failure: StorageError | None = None
        try:
            yield
        except StorageError as error:
            failure = error
        if topic.log.next_seq != first_seq:
            self._observer.stored(topic, bodies, due_ns, first_seq)
        else:
            self._observer.not_stored(topic, bodies)
        if failure is not None:
            raise failure


class _SteppedCommit(GroupCommit):
    """Fsyncs when the simulation lets the disk get on with it."""

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
        """There are no threads in a simulation."""

    def _submit(self, log: FsyncTarget, job: FsyncJob) -> None:
        self._jobs.put((log, job))
        if not self._is_slow:
            self._loop.call_soon(self.run_jobs)

    def run_jobs(self) -> None:
        """Does the threads' work, for all jobs at hand."""
        while not self._jobs.empty():
            item = self._jobs.get()
            assert item is not None
            self._run(*item)

    def close(self) -> None:
        while self._running:
            self.run_jobs()
            self._apply_results()


class _MetadataFile:
    """nsqd.dat, which for its reader is a path."""

    def __init__(
        self, files: FaultyFiles, loop: SimulatedLoop, render: Callable[[], bytes]
    ) -> None:
        self._files = files
        self._loop = loop
        self._render = render
        self._is_due = False

    def write_soon(self, seconds: float = DELAY_SECONDS) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(seconds, self._write_when_due)

    def write(self) -> None:
        files, path = self._files, f"{DATA_PATH}/{metadata.FILE_NAME}"
        try:
            self._remove_rest(f"{path}.tmp")
            file = files.open(f"{path}.tmp", "create")
            write_all(file, [self._render()], 0)
            file.sync()
            file.close()
            files.rename(f"{path}.tmp", path)
            files.sync_folder(DATA_PATH)
        except OSError as error:
            self.write_soon(METADATA_RETRY_SECONDS)
            raise storage_error("write", path, error) from error

    def _write_when_due(self) -> None:
        self._is_due = False
        try:
            self.write()
        except StorageError:
            return  # it has asked to be called again

    def _remove_rest(self, path: str) -> None:
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return

    def __truediv__(self, name: str) -> "_MetadataFile":
        return self

    def read_bytes(self) -> bytes:
        file = self._files.open(f"{DATA_PATH}/{metadata.FILE_NAME}", "read")
        return file.read(0, file.size())


class _Nobody:
    """nsqlookupd, and readers of history: they hear of everything and say nothing."""

    def hears(self, *_: object) -> None:
        pass

    topology_changed = topic_made = appended = hears


class Node(Nsqd):
    """See the module's docstring."""

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
        self.options = _OPTIONS
        self.log = _LOG
        self._bugs = BugReports(_LOG)
        self.report_bug = self._bugs.report = raise_bug  # type: ignore[assignment]
        self.clock = clock
        self._loop = loop  # type: ignore[assignment]
        self._advance_timer = None
        self._turn_is_ending = False
        self._save_seconds = SAVE_SECONDS
        self._housekeeping = None
        self._lookups = self._history = _Nobody()  # type: ignore[assignment]
        self._stepped = _SteppedCommit(
            loop, is_slow=setup.disk_is_slow, sync_every=setup.sync_every
        )
        self._commit = self._stepped
        self._metadata_file = _MetadataFile(
            files, loop, lambda: metadata.render(self.broker.topics.values())
        )
        self._metadata = self._metadata_file  # type: ignore[assignment]
        publisher = _ObservedPublisher(self._stepped, self._end_turn_soon, raise_bug)
        publisher.observe(observer, clock)
        if setup.node_id % 2:  # It would take a while until it begins to by itself.
            publisher.store_at_once()
        self._publisher = publisher
        self._is_starting = True
        self._data_path = DataPath.open(
            DATA_PATH,
            LogSettings(
                max_bytes_per_file=setup.max_bytes_per_file,
                retention_time_ns=setup.retention_time_ns,
            ),
            files,
        )
        self.broker = Broker(
            BrokerSettings(
                node_id=setup.node_id,
                mem_queue_size=setup.mem_queue_size,
                max_msg_timeout_ns=TIMEOUT_MAX_NS,
                requeue_on_disconnect=setup.requeue_on_disconnect,
            ),
            self._data_path,
            self,
            clock,
            sample,
        )
        metadata.restore(cast("Path", self._metadata_file), self.broker, _LOG)
        self._is_starting = False
        self.clients = Clients()
        self.services = self._tcp_services()
        self._keep_house()

    def _tcp_services(self) -> TcpServices:
        session = SessionServices(
            broker=self.broker,
            publisher=self._publisher,
            clock=self.clock,
            log=_LOG,
            offer=_OFFER,
            authenticator=_AUTHENTICATOR,
        )
        return TcpServices(
            session=session,
            limits=_LIMITS,
            patience=_PATIENCE,
            clients=self.clients,
            tls=None,
            tls_required=False,
            admission=Admission(),
            refusals=Refusals(),
            report_bug=raise_bug,
        )

    # What operators do: as the HTTP API does it.

    def settle_publishes(self) -> None:
        """What was published before is seen, and changed, too."""
        self._publisher.store()

    def save_metadata(self) -> None:
        """Raises StorageError."""
        self._metadata_file.write()

    def sync(self) -> None:
        """A slow disk gets on with what it has been given."""
        self._stepped.run_jobs()

    @property
    def is_syncing(self) -> bool:
        return self._stepped.is_busy

    def end(self) -> list[StorageError]:
        """A clean stop. Returns what could not be stored."""
        self.broker.exit()
        self._publisher.store()
        self._publisher.answer()
        failures: list[StorageError] = []
        for step in (self._metadata_file.write, self._stepped.close):
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

    # The broker's driver: the daemon's own, and the observer hears of it.

    def topology_changed(self, topic: Topic, *, lasting: bool) -> None:
        super().topology_changed(topic, lasting=lasting)
        if not self._is_starting:
            self._observer.topology_changed(topic)


_AUTHENTICATOR = Authenticator(_OPTIONS, ManualClock(), _LOG)


@contextmanager
def surroundings(loop: SimulatedLoop) -> Iterator[None]:
    """Puts the simulated loop where the real one would be, and takes away what would make two runs
    differ: the time that a turn takes, and threads."""
    asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", loop))
    try:
        with (
            patch.object(tcp, "monotonic", lambda: 0.0),
            patch.object(topic_storage, "fsync_in_parallel", _try_syncs_in_turn),
        ):
            yield
    finally:
        asyncio._set_running_loop(None)


def _try_syncs_in_turn(targets: list[FsyncTarget]) -> None:
    for target in targets:
        try:
            fsync_now(target)
        except StorageError:
            continue  # it still needs it
