"""Three members, the network between them and the coordination service; and all steps."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import TypeVar, cast

from tests.replication_simulation.ledger import ChannelPromise, Ledger, disk_folder
from tests.replication_simulation.machine import (
    DATA_PATH,
    Machine,
    MemberProcess,
    _StoreOwner,
)
from tests.replication_simulation.network import Connection, Network
from tests.replication_simulation.schedule import ClusterSchedule
from tests.simulation.schedule import Step
from tests.simulation.violation import ViolationError

from penstock.broker.topic import Topic
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import Error, ReplicationError, StorageError
from penstock.replication.coordination import ClusterView
from penstock.replication.node_record import (
    NodeRecord,
    force_leader,
    prefer_leader,
    remove_member,
)
from penstock.storage import TopicStore
from penstock.storage.data_dir import read_format_file
from penstock.storage.layout import TOPICS_NAME, index_name, maybe_segment_seq
from penstock.testing import SimulatedCrash
from penstock.testing.coordination import MemoryCoordination, PendingStep, StepKind
from penstock.testing.files import _Content, _Folder

__all__ = ["STEPS", "World"]

MEMBERS = ("a", "b", "c")
TOPICS = ("t", "u", "v")
CHANNELS = ("x", "y")

_TURN_NS = 100 * MILLISECOND_NS

_T = TypeVar("_T")


class _Service(MemoryCoordination):
    """Reports every change of the record."""

    def __init__(self, on_change: Callable[[NodeRecord | None, NodeRecord], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def swap(self, record: NodeRecord, expected_revision: int) -> bool:
        before = self.record
        is_stored = super().swap(record, expected_revision)
        if is_stored:
            self._on_change(before, record)
        return is_stored


class World:
    """The cluster. Implements `ProcessObserver`."""

    def __init__(
        self, schedule: ClusterSchedule, trace: Callable[[str], object] | None = None
    ) -> None:
        self.setup = schedule.setup
        self.coverage: Counter[str] = Counter()
        self.network = Network()
        self.service = _Service(self._record_changed)
        self.ledger = Ledger(must_sync=self.setup.must_sync)
        self.machines = {name: Machine(name, f"{name}-1") for name in MEMBERS}
        self.last_error: dict[str, str] = {}
        """Why the last process of a member could not go on."""
        self._trace = trace
        self._failed: set[MemberProcess] = set()
        self._ids = 0
        self._disks = 1
        self._bodies = 0
        self._is_forcing = False

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        if self._trace is not None:
            self._trace(text)

    # Processes

    @property
    def running(self) -> list[MemberProcess]:
        return [each.process for each in self.machines.values() if each.process is not None]

    @property
    def leaders(self) -> list[MemberProcess]:
        """The processes that believe that they lead."""
        return [
            each for each in self.running if each.leader is not None and not each.leader.is_stopped
        ]

    @contextmanager
    def turn_of(self, process: MemberProcess | None) -> Iterator[None]:
        """Run code in a process: it may end it."""
        try:
            yield
            if process is not None and process.machine.process is process:
                process.end_turn()
        except SimulatedCrash:
            assert process is not None
            self.coverage["crash within an operation"] += 1
            self.kill(process.machine)
        for failed in tuple(self._failed):
            self._failed.discard(failed)
            if failed.machine.process is failed:
                self.kill(failed.machine)

    def start(self, machine: Machine) -> None:
        if machine.process is not None:
            return
        try:
            machine.process = MemberProcess(
                machine,
                self.setup,
                self.service,
                self.network,
                self,
                self._find_process,
                self.new_id,
            )
        except Error as error:
            self.last_error[machine.name] = str(error)
            machine.disk.crash()
            return
        except SimulatedCrash:
            self._end_process(machine)
            return
        with self.turn_of(machine.process):
            machine.process.start()

    def kill(self, machine: Machine) -> None:
        """End a process; what it has written remains."""
        if machine.process is not None:
            machine.process.coordinator.crash()
            self._end_process(machine)

    def lose_power(self, machine: Machine, random: Random) -> None:
        self.kill(machine)
        format_file = read_format_file(machine.disk, DATA_PATH)
        if format_file is not None and format_file.is_open:
            machine.has_lost_power = True
            losses = self.ledger.power_losses
            losses[machine.name] = losses.get(machine.name, 0) + 1
        machine.disk.lose_power(random)

    def stop(self, machine: Machine) -> None:
        """Stop a process cleanly."""
        process = machine.process
        assert process is not None
        with self.turn_of(process):
            process.stop()
        if machine.process is process:
            with suppress(StopIteration):
                process.coordinator.close().send(None)
            self._end_process(machine)

    def _end_process(self, machine: Machine) -> None:
        process, machine.process = machine.process, None
        machine.disk.crash()
        machine.files.heal()
        if process is not None:
            self.network.drop_process(process)

    def _find_process(self, session: str) -> MemberProcess | None:
        return next((each for each in self.running if each.session == session), None)

    def new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    # Reports of the processes

    def leads(self, process: MemberProcess, view: ClusterView) -> None:
        assert view.record is not None
        self.tell(f"  {process.name} leads in epoch {view.record.epoch}")
        self.coverage["takeover"] += view.record.epoch > 1
        if not view.record.is_in_sync(process.name, process.machine.incarnation):
            raise ViolationError(f"{process.name} leads although it is not in sync")
        current = self.service.record
        for store in process.stores.values():
            self.ledger.names[store.log.log_id] = store.name
        if current is not None and current.epoch == view.record.epoch:
            self.ledger.check_new_leader(process)

    def failed(self, process: MemberProcess, error: Error) -> None:
        self.tell(f"  {process.name} fails: {error}")
        self.last_error[process.name] = str(error)
        self.coverage["member fails"] += 1
        self._failed.add(process)

    def _record_changed(self, before: NodeRecord | None, after: NodeRecord) -> None:
        in_sync = ", ".join(f"{each.member} {each.incarnation}" for each in after.in_sync)
        self.tell(f"  etcd: {after.leader} leads in epoch {after.epoch}; in sync: {in_sync}")
        if self._is_forcing:
            return
        if before is None:
            return
        if (after.leader, after.epoch) != (before.leader, before.epoch):
            if after.epoch != before.epoch + 1:
                raise ViolationError(f"epoch {after.epoch} follows {before.epoch}")
            if after.leader not in before.in_sync_members:
                raise ViolationError(f"{after.leader} has the leadership and is not in sync")
        if after.leader not in after.in_sync_members:
            raise ViolationError("the leader is not in sync")
        for each in set(after.in_sync) - set(before.in_sync):
            machine = self.machines[each.member]
            if machine.incarnation == each.incarnation and (
                self.setup.must_sync or not machine.has_lost_power
            ):
                self.coverage["member joins those in sync"] += 1
                self.ledger.check_joined(machine)
        if set(before.in_sync) - set(after.in_sync):
            self.coverage["member is removed from those in sync"] += 1

    # Turns

    def check(self) -> None:
        """Check the invariants that hold after every step."""
        for process in self.running:
            if process.leader is not None:
                self.ledger.check_watermarks(process, self.machines, self.service.record)

    def run_step(self, step: PendingStep) -> None:
        """Run a step of the coordination service."""
        process = None
        if step.kind is not StepKind.WRITE:
            process = next(
                (each for each in self.running if each.coordinator is step.coordinator), None
            )
        with self.turn_of(process):
            step.run()

    def deliver(self, connection: Connection, count: int, *, is_to_leader: bool) -> None:
        end = connection.leader_end if is_to_leader else connection.follower_end
        with self.turn_of(cast("MemberProcess", end)):
            self.network.deliver(connection, count, is_to_leader=is_to_leader)
        if not is_to_leader and connection.leader_end is not None:
            # The write buffer of the leader may have room again.
            with self.turn_of(cast("MemberProcess", connection.leader_end)):
                pass

    def advance(self, duration_ns: int) -> None:
        for machine in self.machines.values():
            machine.clock.advance(duration_ns)
        for process in self.running:
            with self.turn_of(process):
                process.tick()

    def run_round(self) -> None:
        """Let everything happen that is under way, and a little time pass."""
        for _ in range(20):
            steps = self.service.runnable()
            ready = self.network.ready()
            if not steps and not ready and not any(each.tasks for each in self.running):
                break
            for step in steps:
                if step in self.service.pending and step.is_runnable:
                    self.run_step(step)
            for connection, is_to_leader in ready:
                if (connection, is_to_leader) in self.network.ready():
                    self.deliver(connection, 1000, is_to_leader=is_to_leader)
            for process in self.running:
                with self.turn_of(process):
                    process.run_tasks()
            self.check()
        for process in self.running:
            with self.turn_of(process):
                process.sync()
        self.check()
        self.advance(_TURN_NS)

    # Publishing and progress

    def publish(self, process: MemberProcess, topic: str, count: int, size: int) -> None:
        store = process.stores.get(topic)
        leader = process.leader
        assert leader is not None
        try:
            leader.check_writable()
            if store is None:
                store = self.open_topic(process, topic)
            log = store.log
            first_seq = log.next_seq
            frames = [self._frame(size) for _ in range(count)]
            log.append(frames, process.machine.clock.wall_ns())
        except StorageError as error:
            self.tell(f"  not stored: {error}")
            return
        messages = dict(enumerate(frames, first_seq))

        def on_done(error: StorageError | None) -> None:
            # The watermark has moved in the same call: check it first.
            if error is None:
                self.ledger.check_watermarks(process, self.machines, self.service.record)
                self.ledger.confirm(process, log.log_id, messages)
                self.coverage["confirmed"] += 1
            else:
                self.coverage["not confirmed"] += 1

        leader.when_confirmed(cast("Topic", _StoreOwner(store)), log.next_seq, on_done)

    def open_topic(self, process: MemberProcess, topic: str) -> TopicStore:
        store = process.open_topic(topic)
        self.ledger.names[store.log.log_id] = topic
        return store

    def _frame(self, size: int) -> bytes:
        self._bodies += 1
        body = f"{self._bodies} ".encode().ljust(size, b".")
        return len(body).to_bytes(4) + body

    def promise_progress(self, process: MemberProcess, store: TopicStore, channel: str) -> None:
        """Have the progress of a channel promised once it is replicated."""
        assert process.leader is not None
        progress = store.cursors.progress[channel]
        log_id = store.log.log_id
        promise = ChannelPromise(
            progress.floor,
            tuple(progress.finished_ranges()),
            process.name,
            self.ledger.power_losses.get(process.name, 0),
        )

        def on_done(error: StorageError | None) -> None:
            if error is None and channel in store.cursors.progress:
                self.coverage["progress replicated"] += 1
                self.ledger.promise_channel(log_id, channel, promise)

        process.leader.when_replicated(on_done)

    # Operators

    def operate(self, change: Callable[[NodeRecord], NodeRecord]) -> None:
        """Change the record by hand."""
        record = self.service.record
        if record is not None:
            with suppress(ReplicationError):
                self.service.swap(change(record), self.service.revision)

    def eligible(self) -> list[str]:
        """The members that may take over, whether they run or not."""
        record = self.service.record
        return [
            each.member
            for each in (record.in_sync if record is not None else ())
            if self.ledger.may_lead(self.machines[each.member], each.incarnation)
        ]

    def force_leader(self) -> None:
        """All members in sync have lost power: continue with one of them."""
        record = self.service.record
        assert record is not None
        self.coverage["leader forced"] += 1
        name = next(each.member for each in record.in_sync)
        machine = self.machines[name]
        self.tell(f"  {name} is made the leader by force")
        self.ledger.accept_loss(machine)
        self._is_forcing = True
        self.operate(lambda found: force_leader(found, name, machine.incarnation))
        self._is_forcing = False

    def flip_bit(self, machine: Machine, step: Step) -> None:
        """Damage a segment without an index file. A start does not read the part of a segment that
        its index file covers."""
        topics = disk_folder(machine, f"{DATA_PATH}/{TOPICS_NAME}", is_synced=False)
        if topics is None:
            return
        files = [
            content
            for folder in topics.names.values()
            if isinstance(folder, _Folder)
            for name, content in folder.names.items()
            if (first_seq := maybe_segment_seq(name)) is not None
            and index_name(first_seq) not in folder.names
            and isinstance(content, _Content)
            and content.seen
        ]
        if not files:
            return
        self.coverage["bit flipped"] += 1
        machine.is_damaged = True
        content = files[step.b % len(files)]
        at = step.c % len(content.seen)
        content.seen[at] ^= 1 << step.a % 8
        if at < len(content.safe):
            content.safe[at] ^= 1 << step.a % 8


# Steps


def _pick(found: list[_T], number: int) -> _T | None:
    return found[number % len(found)] if found else None


def _publish(world: World, step: Step) -> None:
    process = _pick(world.leaders, step.a)
    if process is not None:
        with world.turn_of(process):
            topic = TOPICS[step.b % 7 % len(TOPICS)]
            world.publish(process, topic, 1 + step.c % 3, 4 + step.c % 120)


def _pick_store(world: World, step: Step) -> tuple[MemberProcess, TopicStore] | None:
    process = _pick(world.leaders, step.a)
    if process is None:
        return None
    store = _pick(list(process.stores.values()), step.b)
    return None if store is None else (process, store)


def _finish(world: World, step: Step) -> None:
    picked = _pick_store(world, step)
    if picked is None:
        return
    process, store = picked
    channel = _pick(list(store.cursors.progress), step.c)
    if channel is None:
        return
    progress = store.cursors.progress[channel]
    found = progress.open_ranges(progress.floor, store.log.high_watermark)
    if not found:
        return
    first, end = found[step.c % len(found)]
    end = min(end, first + 1 + step.c % 5)
    with world.turn_of(process), suppress(StorageError):
        store.cursors.finish(channel, first, end)
        store.cursors.flush()
        world.promise_progress(process, store, channel)


def _create_channel(world: World, step: Step) -> None:
    picked = _pick_store(world, step)
    if picked is None:
        return
    process, store = picked
    channel = CHANNELS[step.c % len(CHANNELS)]
    if channel not in store.cursors.progress:
        with world.turn_of(process), suppress(StorageError):
            store.cursors.create(channel, store.log.latest_seq)
            world.promise_progress(process, store, channel)


def _delete_channel(world: World, step: Step) -> None:
    picked = _pick_store(world, step)
    if picked is None:
        return
    process, store = picked
    channel = _pick(list(store.cursors.progress), step.c)
    if channel is not None:
        world.ledger.forget_channel(store.log.log_id, channel)
        with world.turn_of(process), suppress(StorageError):
            store.cursors.remove(channel)


def _create_topic(world: World, step: Step) -> None:
    process = _pick(world.leaders, step.a)
    topic = TOPICS[step.b % len(TOPICS)]
    if process is not None and topic not in process.stores:
        with world.turn_of(process), suppress(StorageError):
            world.open_topic(process, topic)


def _delete_topic(world: World, step: Step) -> None:
    picked = _pick_store(world, step)
    if picked is None:
        return
    process, store = picked
    world.ledger.deleted.add(store.log.log_id)
    assert process.data_path is not None
    del process.stores[store.name]
    with world.turn_of(process), suppress(StorageError):
        process.data_path.remove_topic(store.name)


def _trim(world: World, step: Step) -> None:
    picked = _pick_store(world, step)
    if picked is None:
        return
    process, store = picked
    progress = list(store.cursors.progress.values())
    log = store.log

    if process.epoch != (world.service.record or process).epoch:
        return  # Segments that a leader without followers trims are still promised.

    def is_needed(first: int, end: int) -> bool:
        if not progress or not all(each.is_finished(first, end) for each in progress):
            return True
        world.coverage["segment trimmed"] += 1
        world.ledger.trim(log.log_id, range(first, end))
        return False

    with world.turn_of(process), suppress(StorageError):
        log.trim(is_needed, process.machine.clock.wall_ns(), log.high_watermark)


def _deliver(world: World, step: Step) -> None:
    picked = _pick(world.network.ready(), step.a)
    if picked is not None:
        connection, is_to_leader = picked
        world.deliver(connection, (1, 2, 5, 1000)[step.b % 4], is_to_leader=is_to_leader)


def _coordinate(world: World, step: Step) -> None:
    picked = _pick(world.service.runnable(), step.a)
    if picked is not None:
        world.run_step(picked)


def _lose_answer(world: World, step: Step) -> None:
    picked = _pick([each for each in world.service.runnable() if each.is_droppable], step.a)
    if picked is not None:
        world.coverage["answer of etcd lost"] += 1
        picked.drop()


def _time_out_write(world: World, step: Step) -> None:
    picked = _pick([each for each in world.service.pending if each.can_time_out], step.a)
    if picked is not None:
        world.coverage["write to etcd late"] += 1
        picked.time_out()


def _run_tasks(world: World, step: Step) -> None:
    process = _pick([each for each in world.running if each.tasks], step.a)
    if process is not None:
        with world.turn_of(process):
            process.run_tasks()


def _sync(world: World, step: Step) -> None:
    process = _pick(world.running, step.a)
    if process is not None:
        with world.turn_of(process):
            process.sync()


def _pass_time(world: World, step: Step) -> None:
    world.advance((50, 300, 1000, 2500, 4000)[step.a % 5] * MILLISECOND_NS)


def _settle(world: World, step: Step) -> None:
    for _ in range(1 + step.a % 12):
        world.run_round()


def _break_connection(world: World, step: Step) -> None:
    connection = _pick(world.network.connections, step.a)
    if connection is not None:
        connection.break_off()


def _cut(world: World, step: Step) -> None:
    first, second = MEMBERS[step.a % 3], MEMBERS[(step.a + 1 + step.b % 2) % 3]
    world.network.cuts.add((first, second))
    if step.c % 3:
        world.network.cuts.add((second, first))


def _heal(world: World, _step: Step) -> None:
    world.network.cuts.clear()


def _cut_off_etcd(world: World, step: Step) -> None:
    for process in world.running:
        if step.b % 4 == 0 or process.name == MEMBERS[step.a % 3]:
            process.coordinator.set_connected(is_connected=False)


def _reconnect_etcd(world: World, _step: Step) -> None:
    for process in world.running:
        process.coordinator.set_connected(is_connected=True)


def _expire(world: World, step: Step) -> None:
    world.service.expire(MEMBERS[step.a % 3])


def _kill(world: World, step: Step) -> None:
    world.kill(world.machines[MEMBERS[step.a % 3]])


def _lose_power(world: World, step: Step) -> None:
    # Sometimes a power cut affects several machines.
    count = (1, 1, 1, 2, 3)[step.b % 5]
    for at in range(count):
        machine = world.machines[MEMBERS[(step.a + at) % 3]]
        world.lose_power(machine, Random(step.c + at))


def _stop(world: World, step: Step) -> None:
    process = _pick(world.running, step.a)
    if process is not None:
        world.stop(process.machine)


def _start(world: World, step: Step) -> None:
    machine = _pick([each for each in world.machines.values() if each.process is None], step.a)
    if machine is not None:
        world.start(machine)


def _crash_soon(world: World, step: Step) -> None:
    process = _pick(world.running, step.a)
    if process is not None:
        process.machine.files.crash_after(step.b % 12, written=step.c % 60)


def _break_disk(world: World, step: Step) -> None:
    process = _pick(world.running, step.a)
    if process is not None:
        operation = ("sync", "write", "sync", "create")[step.b % 4]
        process.machine.files.fail(operation, skip=step.c % 4)  # type: ignore[arg-type]


def _flip_bit(world: World, step: Step) -> None:
    """Only while another member in sync remains."""
    eligible = world.eligible()
    found = [
        each
        for each in world.machines.values()
        if each.process is None and any(name != each.name for name in eligible)
    ]
    machine = _pick(found, step.a)
    if machine is not None:
        world.flip_bit(machine, step)


def _set_wall_clock(world: World, step: Step) -> None:
    clock = world.machines[MEMBERS[step.a % 3]].clock
    clock.set_wall(clock.wall_ns() + (step.b % 7200 - 3600) * SECOND_NS)


def _prefer_leader(world: World, step: Step) -> None:
    world.operate(lambda record: prefer_leader(record, MEMBERS[step.a % 3]))


def _replace_member(world: World, step: Step) -> None:
    """The disk of a member is lost; another member in sync remains."""
    machine = world.machines[MEMBERS[step.a % 3]]
    if not any(name != machine.name for name in world.eligible()):
        return
    world.coverage["disk replaced"] += 1
    world.kill(machine)
    if step.b % 2:
        world.operate(lambda record: remove_member(record, machine.name))
    world._disks += 1
    machine.replace_disk(f"{machine.name}-{world._disks}")


STEPS: dict[str, Callable[[World, Step], None]] = {
    "publish": _publish,
    "finish": _finish,
    "create_channel": _create_channel,
    "delete_channel": _delete_channel,
    "create_topic": _create_topic,
    "delete_topic": _delete_topic,
    "trim": _trim,
    "deliver": _deliver,
    "coordinate": _coordinate,
    "lose_answer": _lose_answer,
    "time_out_write": _time_out_write,
    "run_tasks": _run_tasks,
    "sync": _sync,
    "pass_time": _pass_time,
    "settle": _settle,
    "break_connection": _break_connection,
    "cut": _cut,
    "heal": _heal,
    "cut_off_etcd": _cut_off_etcd,
    "reconnect_etcd": _reconnect_etcd,
    "expire": _expire,
    "kill": _kill,
    "lose_power": _lose_power,
    "stop": _stop,
    "start": _start,
    "crash_soon": _crash_soon,
    "break_disk": _break_disk,
    "flip_bit": _flip_bit,
    "set_wall_clock": _set_wall_clock,
    "prefer_leader": _prefer_leader,
    "replace_member": _replace_member,
}
