"""A coordination service in memory, for tests and for the simulation: no event loop, no thread, no
clock.

    service = MemoryCoordination()
    coordinator = service.coordinator("a")
    coordinator.start(listener)
    service.run_all()

Nothing happens by itself. Everything that travels between a member and the service is a
`PendingStep` in `MemoryCoordination.pending`. The test decides when a step runs, in which order,
and which steps are lost:

    step = random.choice(service.runnable())
    step.run()      # or
    step.drop()     # lose a view, a write before it is executed, or the answer to a write
    step.time_out() # a write gets the result UNKNOWN, and is executed later nevertheless

An entry of a member expires only by `MemoryCoordination.expire`; the member may be alive.
"""

from collections.abc import Callable
from enum import Enum, auto

from penstock.replication.coordination import ClusterView, ViewListener, WriteResult
from penstock.replication.node_record import MemberAddress, NodeRecord

__all__ = ["MemoryCoordination", "MemoryCoordinator", "PendingStep", "StepKind"]


class StepKind(Enum):
    """What a step does when it runs."""

    CONNECTION = auto()  # calls on_connection
    VIEW = auto()  # calls on_view
    ENTRY = auto()  # stores the entry of a member
    WRITE = auto()  # executes a write in the service
    RESULT = auto()  # passes the result of a write to the member


# These arrive in the order in which they were sent.
_ORDERED = frozenset({StepKind.CONNECTION, StepKind.VIEW})


class PendingStep:
    """Something that has not happened yet."""

    def __init__(
        self,
        coordinator: "MemoryCoordinator",
        kind: StepKind,
        action: Callable[[], None],
        report_unknown: Callable[[], None] | None = None,
    ) -> None:
        """`report_unknown` queues the result UNKNOWN; for writes and their results."""
        self.kind = kind
        self.coordinator = coordinator
        self._action = action
        self._report_unknown = report_unknown

    @property
    def member(self) -> str:
        return self.coordinator.member

    @property
    def is_droppable(self) -> bool:
        """Whether the step can be lost."""
        return self.kind is StepKind.VIEW or self._report_unknown is not None

    @property
    def is_runnable(self) -> bool:
        """Views and changes of the connection are runnable if all earlier ones have run."""
        if self.kind not in _ORDERED:
            return True
        return not any(
            each.kind in _ORDERED and each.coordinator is self.coordinator
            for each in self._earlier_steps()
        )

    def run(self) -> None:
        """Let it happen."""
        assert self.is_runnable, "an earlier view or change of the connection is pending"
        self._remove()
        self._action()

    def drop(self) -> None:
        """Lose it. A write that is dropped is never executed, and the member gets the result
        UNKNOWN. If the result of an executed write is dropped, the member gets UNKNOWN instead. A
        member whose last view is dropped gets the next one after the next change, or by
        `MemoryCoordination.resend_view`."""
        assert self.is_droppable, f"a step of kind {self.kind.name} cannot be lost"
        self._remove()
        self._send_unknown()

    def time_out(self) -> None:
        """The member gets the result UNKNOWN, but the write is still pending and may be executed
        later; its answer is then ignored. Only for a write that has not timed out yet."""
        assert self.can_time_out, "only a write can time out, and only once"
        self._send_unknown()

    @property
    def can_time_out(self) -> bool:
        return self.kind is StepKind.WRITE and self._report_unknown is not None

    def _send_unknown(self) -> None:
        report, self._report_unknown = self._report_unknown, None
        if report is not None:
            report()

    def _remove(self) -> None:
        self.coordinator.service.pending.remove(self)

    def _earlier_steps(self) -> list["PendingStep"]:
        pending = self.coordinator.service.pending
        return pending[: pending.index(self)]

    def __repr__(self) -> str:
        return f"<PendingStep {self.kind.name} of {self.member}>"


class MemoryCoordination:
    """The service for one node: its record and the entries of its members."""

    def __init__(self) -> None:
        self.record: NodeRecord | None = None
        self.revision = 0
        self.alive: dict[str, MemberAddress] = {}
        self.pending: list[PendingStep] = []
        """All steps, in the order in which they were sent."""
        self._last_revision = 0
        self._coordinators: list[MemoryCoordinator] = []

    def coordinator(self, member: str) -> "MemoryCoordinator":
        """A new connection of a member. Each start of a process needs a new one."""
        coordinator = MemoryCoordinator(self, member)
        self._coordinators.append(coordinator)
        return coordinator

    @property
    def view(self) -> ClusterView:
        """The current content."""
        return ClusterView(self.record, self.revision, dict(self.alive))

    def runnable(self) -> list[PendingStep]:
        """The pending steps that may run next."""
        return [step for step in self.pending if step.is_runnable]

    def run_all(self) -> None:
        """Run all steps, in order, until none is pending."""
        while self.pending:
            self.pending[0].run()

    def expire(self, member: str) -> None:
        """Delete the entry of a member, whether it lives or not. If it lives and is connected, it
        stores the entry again, by a step."""
        if self.alive.pop(member, None) is not None:
            self._entry_removed(member)

    def resend_view(self, coordinator: "MemoryCoordinator") -> None:
        """Send the current view, as after a new connection."""
        coordinator.send_view()

    # Called by coordinators and steps.

    def swap(self, record: NodeRecord, expected_revision: int) -> bool:
        """Execute a write. Returns whether the record was stored."""
        if self.revision != expected_revision:
            return False
        self._last_revision += 1
        self.record, self.revision = record, self._last_revision
        self._send_views()
        return True

    def store_entry(self, address: MemberAddress) -> bool:
        """Store the entry of a member, unless another session holds it. Returns whether it was
        stored."""
        holder = self.alive.get(address.member)
        if holder is not None and holder.session != address.session:
            return False
        if holder != address:
            self.alive[address.member] = address
            self._send_views()
        return True

    def remove(self, coordinator: "MemoryCoordinator", *, deletes_entry: bool) -> None:
        """Remove a coordinator that has stopped. Its pending writes remain, and may still be
        executed."""
        self._coordinators.remove(coordinator)
        self.pending[:] = [
            step
            for step in self.pending
            if step.coordinator is not coordinator or step.kind is StepKind.WRITE
        ]
        member, address = coordinator.member, coordinator.address
        holder = self.alive.get(member)
        if deletes_entry and holder and address and holder.session == address.session:
            del self.alive[member]
            self._entry_removed(member)

    def _entry_removed(self, member: str) -> None:
        self._send_views()
        for each in self._coordinators:
            if each.member == member:
                each.send_entry()

    def _send_views(self) -> None:
        for each in self._coordinators:
            each.send_view()


class MemoryCoordinator:
    """Implements `Coordinator` for one member. It is connected from the beginning."""

    def __init__(self, service: MemoryCoordination, member: str) -> None:
        self.service = service
        self.member = member
        self.address: MemberAddress | None = None
        self.is_connected = True
        self._is_closed = False
        self._listener: ViewListener | None = None

    def start(self, listener: ViewListener) -> None:
        assert self._listener is None, "it is already started"
        self._listener = listener
        self._send_connection()
        self.send_view()

    def write(
        self, record: NodeRecord, expected_revision: int, done: Callable[[WriteResult], None]
    ) -> None:
        """While the member is disconnected, the result is UNKNOWN, and nothing is stored."""

        def report(result: WriteResult, *, can_be_lost: bool = True) -> None:
            lose = (lambda: report(WriteResult.UNKNOWN, can_be_lost=False)) if can_be_lost else None
            if not self._is_closed:
                self._send(StepKind.RESULT, lambda: done(result), lose)

        def execute() -> None:
            is_stored = self.service.swap(record, expected_revision)
            if step.can_time_out:  # otherwise the member has the result UNKNOWN already
                report(WriteResult.STORED if is_stored else WriteResult.CONFLICT)

        if not self.is_connected:
            report(WriteResult.UNKNOWN, can_be_lost=False)
            return
        step = self._send(
            StepKind.WRITE, execute, lambda: report(WriteResult.UNKNOWN, can_be_lost=False)
        )

    def announce(self, address: MemberAddress) -> None:
        assert address.member == self.member, "it is the address of another member"
        self.address = address
        self.send_entry()

    async def close(self) -> None:
        """If the member is disconnected, its entry remains until it expires."""
        self._stop(deletes_entry=self.is_connected)

    def crash(self) -> None:
        """Stop without deleting the entry. A new process needs a new coordinator."""
        self._stop(deletes_entry=False)

    def set_connected(self, *, is_connected: bool) -> None:
        """Connect or disconnect this member. Steps that are pending already remain so."""
        if is_connected is self.is_connected:
            return
        self.is_connected = is_connected
        if self._listener is not None:
            self._send_connection()
        self.send_view()
        self.send_entry()

    # Called by the service.

    def send_view(self) -> None:
        listener, view = self._listener, self.service.view
        if listener is not None and self.is_connected:
            self._send(StepKind.VIEW, lambda: listener.on_view(view))

    def send_entry(self) -> None:
        """Queue a step that stores the entry of this member, unless such a step is queued."""
        is_queued = any(
            step.kind is StepKind.ENTRY and step.coordinator is self
            for step in self.service.pending
        )
        if self.address is not None and self.is_connected and not is_queued:
            self._send(StepKind.ENTRY, self._store_entry)

    def _store_entry(self) -> None:
        # If another process holds the entry, the service calls `send_entry` once it has gone.
        if self.address is not None and self.is_connected:
            self.service.store_entry(self.address)

    def _send_connection(self) -> None:
        listener, is_connected = self._listener, self.is_connected
        assert listener is not None
        self._send(StepKind.CONNECTION, lambda: listener.on_connection(is_connected=is_connected))

    def _send(
        self,
        kind: StepKind,
        action: Callable[[], None],
        report_unknown: Callable[[], None] | None = None,
    ) -> PendingStep:
        step = PendingStep(self, kind, action, report_unknown)
        self.service.pending.append(step)
        return step

    def _stop(self, *, deletes_entry: bool) -> None:
        assert not self._is_closed, "it is already closed"
        self._is_closed = True
        self.service.remove(self, deletes_entry=deletes_entry)
