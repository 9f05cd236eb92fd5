"""A machine with its disk and clock, and the process of a member on it.

`MemberProcess` connects the real `Member`, `Leader`, `Follower` and storage to the simulated
network, coordination service and files, as `penstock.nsqd.replicated` does with sockets and etcd.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
from tests.replication_simulation.network import Connection, Network
from tests.replication_simulation.schedule import ClusterSetup

from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import Error, ReplicationError, StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.replication.coordination import ClusterView
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.follower import Follower
from penstock.replication.leader import STREAM_VERSION, FollowerLink, Leader, LeaderSettings
from penstock.replication.member import Member, MemberIdentity
from penstock.replication.member_file import MemberFile, read_member_file, write_member_file
from penstock.replication.node_record import MemberAddress
from penstock.replication.stream import (
    FollowerMessage,
    FormatSettings,
    Hello,
    LeaderMessage,
)
from penstock.storage import DataPath, LogSettings, TopicStore
from penstock.storage.data_dir import FormatFile, verify_data_path
from penstock.storage.fsync import FsyncJob, FsyncTarget, run_job
from penstock.storage.layout import Issue
from penstock.storage.topic_storage import LastShutdown
from penstock.testing import FaultyFiles, ManualClock, MemoryFiles
from penstock.testing.coordination import MemoryCoordination

__all__ = ["DATA_PATH", "LEASE_NS", "TIMEOUT_NS", "Machine", "MemberProcess", "ProcessObserver"]

DATA_PATH = "data"
LEASE_NS = 3 * SECOND_NS
TIMEOUT_NS = 2 * SECOND_NS

_RETRY_NS = 500 * MILLISECOND_NS
_SILENCE_NS = 2 * TIMEOUT_NS
_LOG = Logger("", LogLevel.FATAL)


class _Disk(MemoryFiles):
    """A disk whose random bytes differ from those of other disks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def random_bytes(self, size: int) -> bytes:
        return hashlib.shake_128(self._name.encode() + super().random_bytes(16)).digest(size)


class ProcessObserver(Protocol):
    """Receives the events of the processes."""

    def leads(self, process: "MemberProcess", view: ClusterView) -> None:
        """The process has opened the data path as leader, and serves nobody yet."""

    def failed(self, process: "MemberProcess", error: Error) -> None:
        """The process cannot go on, and ends."""


class Machine:
    """A machine: its disk survives the processes."""

    def __init__(self, name: str, disk_name: str) -> None:
        self.name = name
        self.clock = ManualClock()
        self.process: MemberProcess | None = None
        self.incarnation = ""
        """Of the last process."""
        self.has_lost_power = False
        """Whether the machine went down without a clean stop since the last start."""
        self.is_damaged = False
        """Whether a bit was flipped since the member was last in sync."""
        self.replace_disk(disk_name)

    def replace_disk(self, disk_name: str) -> None:
        self.disk = _Disk(disk_name)
        self.disk.make_folder(DATA_PATH)
        self.disk.sync_folder("")
        self.files = FaultyFiles(self.disk)
        self.incarnation = ""
        self.has_lost_power = self.is_damaged = False


class _LeaderSide:
    """The leader's end of a connection. Implements `FollowerConnection`."""

    def __init__(self, connection: Connection, leader: Leader, queue_max: int) -> None:
        self.connection = connection
        self.link = FollowerLink(leader, self)
        self._queue_max = queue_max

    def send(self, message: LeaderMessage) -> None:
        self.connection.send_to_follower(message)

    @property
    def can_send(self) -> bool:
        return len(self.connection.to_follower) < self._queue_max

    def close(self) -> None:
        self.connection.close_leader()


class _FollowerSide:
    """The follower's end of a connection. Implements `LeaderConnection`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, message: FollowerMessage) -> None:
        self.connection.send_to_leader(message)


class MemberProcess:
    """One process of a member. Implements `MemberActions`."""

    def __init__(
        self,
        machine: Machine,
        setup: ClusterSetup,
        service: MemoryCoordination,
        network: Network,
        observer: ProcessObserver,
        find_process: Callable[[str], "MemberProcess | None"],
        new_id: Callable[[], str],
    ) -> None:
        """`find_process` returns the running process of a session. Raises Error if the data path
        cannot be used."""
        self.machine = machine
        self.name = machine.name
        self.setup = setup
        self.session = new_id()
        self.tasks: deque[Callable[[], None]] = deque()
        """Actions that were started and have not ended yet."""
        self.leader: Leader | None = None
        self.data_path: DataPath | None = None
        self.stores: dict[str, TopicStore] = {}
        self.epoch = 0
        """In which it leads."""
        self.last_error = ""
        """Why the member could not follow."""
        self._new_id = new_id
        self._network = network
        self._observer = observer
        self._find_process = find_process
        self._files = machine.files
        self._clock = machine.clock
        self._copy: CopiedDataPath | None = None
        identity = self._load_identity()
        self._identity = identity
        self._node_uuid = identity.node_uuid
        machine.incarnation = identity.incarnation
        machine.has_lost_power = False
        self.coordinator = service.coordinator(machine.name)
        self.member = Member(identity, self.coordinator, self, self._clock, _LOG, new_id)
        self._sends_soon = False
        self._sides: dict[Connection, _LeaderSide] = {}
        self._log_fsyncs: list[tuple[TopicStore, FsyncTarget, FsyncJob]] = []
        self._copy_fsync: tuple[CopyFsync, Callable[[OSError | None], None]] | None = None
        self._follower: Follower | None = None
        self._connection: Connection | None = None
        self._target: tuple[MemberAddress, int] | None = None
        self._retry_at_ns = 0
        self._last_received_ns = 0

    # The identity

    def _load_identity(self) -> MemberIdentity:
        format_file = verify_data_path(DATA_PATH, self._files)
        stored = read_member_file(self._files, DATA_PATH)
        if stored is not None and format_file is not None:
            stored = self.renew_incarnation(stored, format_file)
        incarnation = stored.incarnation if stored is not None else self._new_id()
        names = self._files.list_names(DATA_PATH)
        has_data = "topics" in names and bool(self._files.list_names(f"{DATA_PATH}/topics"))
        address = MemberAddress(
            member=self.name,
            incarnation=incarnation,
            session=self.session,
            broadcast_address=self.name,
            tcp_port=1,
            http_port=2,
            version="",
        )
        return MemberIdentity(
            cluster="cluster",
            node="node",
            member=self.name,
            incarnation=incarnation,
            address=address,
            node_uuid=stored.node_uuid if stored is not None else "",
            has_data=has_data,
            lease_ns=LEASE_NS,
        )

    def renew_incarnation(self, stored: MemberFile, format_file: FormatFile) -> MemberFile:
        """As `ReplicatedNsqd` does after a power loss, or if the copy is damaged."""
        renewed = msgspec.structs.replace(stored, incarnation=self._new_id())
        found: list[MemberFile] = [stored]

        def renew() -> None:
            found.append(renewed)
            write_member_file(self._files, DATA_PATH, renewed)

        def report(issue: Issue) -> None:
            if issue.is_damage and found[-1] is stored:
                renew()

        shutdown = format_file.last_shutdown(self._files.boot_id())
        if shutdown is LastShutdown.POWER_LOSS and not self.setup.must_sync:
            renew()
        self._copy = CopiedDataPath.open(DATA_PATH, self._files, report)
        return found[-1]

    def _on_issue(self, issue: Issue) -> None:
        """As `ReplicatedNsqd` does if a copy that is opened again is damaged."""
        if issue.is_damage:
            self._write_member_file(self._new_id())
            self.fail(ReplicationError(f"the copy is damaged: {issue}"))

    # Decisions of the member

    def join(self, node_uuid: str) -> None:
        self._node_uuid = node_uuid
        self._write_member_file(self._identity.incarnation)

    def _write_member_file(self, incarnation: str) -> None:
        content = MemberFile(
            cluster="cluster",
            node="node",
            node_uuid=self._node_uuid,
            member=self.name,
            incarnation=incarnation,
        )
        self.machine.incarnation = incarnation
        try:
            write_member_file(self._files, DATA_PATH, content)
        except OSError as error:
            self.fail(ReplicationError(str(error)))

    def lead(self, view: ClusterView) -> None:
        self.tasks.append(lambda: self._start_leading(view))

    def leader_view(self, view: ClusterView) -> None:
        if self.leader is not None:
            self.leader.on_view(view)

    def stop_leading(self) -> None:
        if self.leader is not None:
            self.leader.stop()
        self.tasks.append(self._stop_leading)

    def follow(self, leader: MemberAddress, epoch: int) -> None:
        self.stop_following()
        self._target = leader, epoch
        self._retry_at_ns = 0

    def stop_following(self) -> None:
        self._target = None
        self._end_stream()

    def fail(self, error: Error) -> None:
        self._observer.failed(self, error)

    # Leading

    def _start_leading(self, view: ClusterView) -> None:
        assert view.record is not None
        try:
            self._close_copy()
            self.epoch = view.record.epoch
            leader = self._new_leader(view)
            self.data_path = DataPath.open(
                DATA_PATH,
                LogSettings(max_bytes_per_file=self.setup.max_bytes_per_file),
                self._files,
                epoch=self.epoch,
                observer=leader,
                may_lack_messages=view.record.is_forced,
            )
            for name in self.data_path.topics():
                self.open_topic(name)
        except Error as error:
            self.fail(error)
            return
        self.leader = leader
        self._observer.leads(self, view)
        leader.start()
        if self.member.view is not None:
            leader.on_view(self.member.view)

    def _new_leader(self, view: ClusterView) -> Leader:
        settings = LeaderSettings(
            cluster="cluster",
            node="node",
            member=self.name,
            epoch=self.epoch,
            token="",
            must_sync=self.setup.must_sync,
            min_in_sync=self.setup.min_in_sync,
            timeout_ns=TIMEOUT_NS,
        )
        return Leader(
            settings,
            view,
            self._clock,
            _LOG,
            write=self.coordinator.write,
            format_settings=self._format_settings,
            on_visible=lambda _: None,
            send_soon=self._send_soon,
        )

    def _format_settings(self) -> FormatSettings:
        assert self.data_path is not None
        return FormatSettings(self.data_path.node_id, self.data_path.reserved_below)

    def _send_soon(self) -> None:
        self._sends_soon = True

    def open_topic(self, name: str) -> TopicStore:
        """Open or create a topic. Raises StorageError."""
        assert self.data_path is not None
        store, _ = self.data_path.open_topic(name, wall_ns=self._clock.wall_ns())
        self.stores[name] = store
        return store

    def _stop_leading(self) -> None:
        self._end_log_fsyncs()
        data_path, self.data_path = self.data_path, None
        self.leader = None
        self.stores.clear()
        self._sides.clear()
        if data_path is not None:
            try:
                data_path.close()
            except Error as error:
                self.fail(error)
                return
        self.member.stopped_leading()

    def begin_log_fsyncs(self) -> None:
        """Start the fsyncs of everything that is unsynced."""
        running = {id(target) for _, target, _ in self._log_fsyncs}
        for store in self.stores.values():
            for target in (store.log, store.cursors):
                if target.needs_sync and id(target) not in running:
                    try:
                        self._log_fsyncs.append((store, target, target.begin_sync()))
                    except StorageError:
                        continue  # Tried again by the next fsync.

    def _end_log_fsyncs(self) -> None:
        fsyncs, self._log_fsyncs = self._log_fsyncs, []
        for store, target, job in fsyncs:
            target.end_sync(job, run_job(job))
            if self.leader is not None and target is store.log:
                self.leader.synced(_StoreOwner(store))  # type: ignore[arg-type]

    # The leader's end of connections

    def on_follower_message(self, connection: Connection, message: FollowerMessage) -> None:
        side = self._sides.get(connection)
        if side is None:  # The leader has stopped.
            return
        try:
            side.link.on_message(message)
        except (ReplicationError, StorageError):
            side.close()
            self.on_follower_closed(connection)

    def on_follower_closed(self, connection: Connection) -> None:
        side = self._sides.pop(connection, None)
        if side is not None:
            side.link.on_closed()

    def accept(self, follower: "MemberProcess") -> Connection | None:
        """A connection of a follower; None if this process does not lead."""
        if self.leader is None:
            return None
        connection = Connection(follower.name, self.name, follower, self)
        self._sides[connection] = _LeaderSide(connection, self.leader, self.setup.queue_max)
        self._network.connections.append(connection)
        return connection

    # Following

    def on_leader_messages(self, connection: Connection, messages: list[LeaderMessage]) -> None:
        if connection is not self._connection or self._follower is None:
            return
        self._last_received_ns = self._clock.now_ns()
        try:
            for message in messages:
                self._follower.on_message(message)
            self._follower.on_read_end()
        except (ReplicationError, StorageError) as error:
            self._stream_failed(error)

    def on_leader_closed(self, connection: Connection) -> None:
        if connection is self._connection:
            self._stream_failed(None)

    def _stream_failed(self, error: Exception | None) -> None:
        self._end_stream()
        self.last_error = str(error)
        self._retry_at_ns = self._clock.now_ns() + _RETRY_NS
        if isinstance(error, StorageError) and self._copy is not None:
            # What is on the disk is unknown: find out again.
            self._copy.abandon()
            self._copy = None

    def _end_stream(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None
        if self._connection is not None:
            self._connection.close_follower()
            self._connection = None

    def _connect(self) -> None:
        assert self._target is not None
        leader, epoch = self._target
        try:
            if self._copy is None:
                self._copy = CopiedDataPath.open(DATA_PATH, self._files, self._on_issue)
        except Error as error:
            self.last_error = str(error)
            self._retry_at_ns = self._clock.now_ns() + _RETRY_NS
            return
        process = self._find_process(leader.session)
        can_connect = process is not None and self._network.can_connect(self.name, process.name)
        connection = process.accept(self) if process is not None and can_connect else None
        if connection is None:
            self._retry_at_ns = self._clock.now_ns() + _RETRY_NS
            return
        self._connection = connection
        self._last_received_ns = self._clock.now_ns()
        self._follower = Follower(
            self._copy,
            self._hello(epoch),
            _FollowerSide(connection),
            self._run_fsync,
            self._stream_failed,
        )

    def _hello(self, epoch: int) -> Hello:
        return Hello(
            "cluster",
            "node",
            self._node_uuid,
            self.name,
            self._identity.incarnation,
            epoch,
            "",
            STREAM_VERSION,
        )

    def _run_fsync(self, job: CopyFsync, done: Callable[[OSError | None], None]) -> None:
        assert self._copy_fsync is None
        self._copy_fsync = job, done

    def _end_copy_fsync(self) -> None:
        if self._copy_fsync is None:
            return
        (job, done), self._copy_fsync = self._copy_fsync, None
        error = None
        try:
            job.run()
        except OSError as failure:
            error = failure
        done(error)

    def _close_copy(self) -> None:
        self._end_stream()
        self._end_copy_fsync()
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    # Time and turns

    def start(self) -> None:
        self.member.start()

    def run_tasks(self) -> None:
        """Do what was started."""
        while self.tasks:
            self.tasks.popleft()()

    def sync(self) -> None:
        """End the fsyncs that are running, and start those that are due."""
        self._end_copy_fsync()
        self._end_log_fsyncs()
        self.begin_log_fsyncs()
        if self._follower is not None:
            self._follower.sync_in_background()

    def tick(self) -> None:
        self.member.tick()
        if self.leader is not None:
            self.leader.tick()
        now_ns = self._clock.now_ns()
        if self._connection is not None:
            if now_ns - self._last_received_ns > _SILENCE_NS:
                self._stream_failed(None)
        elif self._target is not None and now_ns >= self._retry_at_ns and not self._copy_fsync:
            # The owner awaits a running fsync of the copy.
            self._connect()

    def end_turn(self) -> None:
        """Send what was written, as nsqd does at the end of each turn of the loop, and when the
        buffer of a connection has room again."""
        if self.leader is None or self.leader.is_stopped:
            return
        if self._sends_soon:
            self._sends_soon = False
            self.leader.send()
        for side in tuple(self._sides.values()):
            if side.link.is_streaming and side.link.has_unsent and side.can_send:
                try:
                    side.link.send_more()
                except StorageError:
                    side.link.close()

    def stop(self) -> None:
        """A clean stop."""
        self.run_tasks()
        self._end_stream()
        self._end_copy_fsync()
        self._end_log_fsyncs()
        try:
            if self.leader is not None:
                self.leader.stop()
            if self.data_path is not None:
                self.data_path.close()
            if self._copy is not None:
                self._copy.close()
        except Error:
            pass  # The next start treats it as a crash.


class _StoreOwner:
    """Stands for a `Topic`, of which the leader uses only the store."""

    def __init__(self, store: TopicStore) -> None:
        self.store = store
