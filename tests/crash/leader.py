"""The leader of a replicated node, used like a single nsqd, so that the same tests run on both.

    with run_leader() as nsqd:
        nsqd.publish("orders", b"one")
        nsqd.kill()
        nsqd.restart()  # from now on `nsqd` is the member that leads

A fault affects the leader only; the two followers keep running.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from penstock.testing.daemon import READY_SECONDS, STOP_SECONDS
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.replicated import MemberProcess, ReplicatedNode, run_replicated_node
from penstock.testing.waiting import wait_until

__all__ = ["LeaderProcess", "RunNsqd", "copies", "run_leader"]

# Long, so that a busy machine or a suspension of the leader causes no takeover. The entry of a
# killed leader is deleted from etcd at once.
TIMEOUTS = ("--leader-timeout=20s", "--replica-timeout=20s")


class RunNsqd(Protocol):
    """`run_nsqd` or `run_leader`."""

    def __call__(
        self, *flags: str, data_path: Path | None = None, program: Sequence[str] = ()
    ) -> AbstractContextManager[NsqdProcess]: ...


class LeaderProcess(NsqdProcess):
    """The member that leads. After a kill or a stop it is that member until the next start."""

    def __init__(self, node: ReplicatedNode, pinned: str | None) -> None:
        """If `pinned` is given, this member leads after each start."""
        super().__init__(Path(), (), -1)
        self.node = node
        self._pinned = pinned
        if pinned is not None:
            node.prefer(pinned)
        self._leader = self._find_leader()

    def start(self, *, seconds: float = READY_SECONDS) -> None:
        """Start the member again, and wait until a member leads and all are in sync."""
        self._leader.start(seconds=seconds)
        self._leader = self._find_leader()

    def kill(self) -> None:
        self.close_clients()
        self._leader.kill()
        self.node.expire_lease(self._leader.name)

    def send_signal(self, number: signal.Signals) -> None:
        self._leader.send_signal(number)

    def wait(self, *, seconds: float = STOP_SECONDS) -> int:
        return self._leader.wait(seconds=seconds)

    def check_log(self) -> None:
        for member in self.node.members.values():
            member.check_log()

    @property
    def is_running(self) -> bool:
        return self._leader.is_running

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def log(self) -> str:
        return self._leader.log

    def _find_leader(self) -> MemberProcess:
        if self._pinned is not None:
            wait_until(lambda: self.node.leader() == self._pinned, f"{self._pinned} to lead")
        self.node.wait_in_sync(len(self.node.members))
        leader = self.node.led_by
        self.data_path = leader.data_path
        self.tcp_address, self.http_address = leader.tcp_address, leader.http_address
        return leader


@contextmanager
def run_leader(
    *flags: str, data_path: Path | None = None, program: Sequence[str] = ()
) -> Iterator[LeaderProcess]:
    """Run three members with these flags. If `data_path` is given, its member always leads."""
    data_paths = {} if data_path is None else {"a": data_path}
    with run_replicated_node(
        flags=[*TIMEOUTS, *flags], data_paths=data_paths, program=program
    ) as node:
        leader = LeaderProcess(node, pinned="a" if data_paths else None)
        yield leader
        leader.close_clients()


def copies(nsqd: NsqdProcess) -> list[Path]:
    """The data paths of an nsqd: one, or those of all members."""
    if isinstance(nsqd, LeaderProcess):
        return [member.data_path for member in nsqd.node.members.values()]
    return [nsqd.data_path]
