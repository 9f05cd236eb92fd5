"""What the tests of coordinators share: a listener that records, and both services behind one
interface."""

import asyncio
import itertools
import secrets
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from penstock.common.errors import ReplicationError
from penstock.common.logs import Logger
from penstock.replication.coordination import (
    ClusterView,
    Coordinator,
    WriteResult,
)
from penstock.replication.etcd import EtcdCoordinator
from penstock.replication.etcd_client import EtcdConfig
from penstock.replication.node_record import MemberAddress, NodeRecord, create_record
from penstock.testing.clock import ManualClock
from penstock.testing.coordination import MemoryCoordination

WAIT_SECONDS = 60.0
CLUSTER = "shop"


def make_record(member: str = "a") -> NodeRecord:
    return create_record("5f0c", member, "1")


def make_address(member: str, session: str = "s1", *, leading_epoch: int = 0) -> MemberAddress:
    return MemberAddress(
        member=member,
        incarnation="1",
        session=session,
        broadcast_address=f"{member}.example",
        tcp_port=4150,
        http_port=4151,
        version="1",
        leading_epoch=leading_epoch,
    )


async def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true, while the event loop runs."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:g} s in vain for {what}"
        await asyncio.sleep(0.005)


class RecordingListener:
    """Records all calls."""

    def __init__(self) -> None:
        self.views: list[ClusterView] = []
        self.connections: list[bool] = []
        self.errors: list[ReplicationError] = []

    def on_view(self, view: ClusterView) -> None:
        self.views.append(view)

    def on_connection(self, *, is_connected: bool) -> None:
        self.connections.append(is_connected)

    def on_error(self, error: ReplicationError) -> None:
        self.errors.append(error)

    @property
    def last(self) -> ClusterView:
        return self.views[-1]

    @property
    def alive(self) -> set[str]:
        """Members of the last view."""
        return set(self.views[-1].alive) if self.views else set()


class Service(ABC):
    """A coordination service for one node. Coordinators are closed at the end."""

    def __init__(self) -> None:
        self._open: list[Coordinator] = []

    @abstractmethod
    def make(self, member: str) -> Coordinator:
        """A coordinator that is not started."""

    @abstractmethod
    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Let the service work until the condition is true."""

    def coordinator(self, member: str) -> Coordinator:
        coordinator = self.make(member)
        self._open.append(coordinator)
        return coordinator

    async def start(self, member: str) -> tuple[Coordinator, RecordingListener]:
        """A coordinator that has delivered its first view."""
        coordinator, listener = self.coordinator(member), RecordingListener()
        coordinator.start(listener)
        await self.until(lambda: listener.views, "the first view")
        return coordinator, listener

    async def write(
        self, coordinator: Coordinator, record: NodeRecord, expected_revision: int
    ) -> WriteResult:
        results: list[WriteResult] = []
        coordinator.write(record, expected_revision, results.append)
        assert not results, "write returns before the result arrives"
        await self.until(lambda: results, "the result of a write")
        return results[0]

    async def close(self, coordinator: Coordinator) -> None:
        self._open.remove(coordinator)
        await coordinator.close()

    async def close_all(self) -> None:
        for each in list(self._open):
            await self.close(each)


class MemoryService(Service):
    """Runs the steps in order."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryCoordination()

    def make(self, member: str) -> Coordinator:
        return self.memory.coordinator(member)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        while not condition():
            assert self.memory.pending, f"waited in vain for {what}"
            self.memory.pending[0].run()


class EtcdService(Service):
    """A new node in a running etcd."""

    def __init__(
        self,
        *urls: str,
        node: str = "",
        lease_seconds: int = 10,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        request_timeout_seconds: float = 30.0,
    ) -> None:
        """The default times are long, so that a busy machine does not disturb."""
        super().__init__()
        self.node = node or f"n-{secrets.token_hex(4)}"
        self.config = EtcdConfig(
            urls, user, password, tls, request_timeout_seconds=request_timeout_seconds
        )
        self.log_lines: list[str] = []
        self._lease_seconds = lease_seconds

    @property
    def prefix(self) -> str:
        return f"/penstock/{CLUSTER}/{self.node}/"

    def make(self, member: str) -> Coordinator:
        return EtcdCoordinator(
            self.config,
            cluster=CLUSTER,
            node=self.node,
            member=member,
            lease_seconds=self._lease_seconds,
            # The clock stands still: repeated errors are never written again.
            log=Logger("[test] ", clock=ManualClock(), write=self.log_lines.append),
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            await wait_for(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{''.join(self.log_lines)}") from None


def assert_in_order(views: list[ClusterView]) -> None:
    for earlier, later in itertools.pairwise(views):
        assert earlier.revision <= later.revision
