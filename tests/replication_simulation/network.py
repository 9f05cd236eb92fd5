"""Connections between the members: messages arrive in order, late, or the connection breaks.

Each end closes by itself and learns of the other end's closing later, after the messages that were
sent before it, or instead of them. While the network is cut in one direction, messages in that
direction wait.
"""

from collections import deque
from typing import Protocol

from penstock.replication.stream import FollowerMessage, LeaderMessage

__all__ = ["Connection", "FollowerEnd", "LeaderEnd", "Network"]


class LeaderEnd(Protocol):
    """The leader's process, as a connection sees it."""

    def on_follower_message(self, connection: "Connection", message: FollowerMessage) -> None: ...

    def on_follower_closed(self, connection: "Connection") -> None: ...


class FollowerEnd(Protocol):
    """The follower's process, as a connection sees it."""

    def on_leader_messages(
        self, connection: "Connection", messages: list[LeaderMessage]
    ) -> None: ...

    def on_leader_closed(self, connection: "Connection") -> None: ...


class Connection:
    """One connection of a follower to a leader."""

    def __init__(
        self, follower: str, leader: str, follower_end: FollowerEnd, leader_end: LeaderEnd
    ) -> None:
        self.follower = follower
        self.leader = leader
        self.to_leader: deque[FollowerMessage] = deque()
        self.to_follower: deque[LeaderMessage] = deque()
        self.follower_end: FollowerEnd | None = follower_end
        """None after the follower has closed its end, or its process has ended."""
        self.leader_end: LeaderEnd | None = leader_end
        self.is_broken = False
        """Whether everything that is sent is lost; each end learns of it later."""

    @property
    def is_over(self) -> bool:
        return self.follower_end is None and self.leader_end is None

    def close_follower(self) -> None:
        """The follower closes its end: nothing reaches it any more."""
        self.follower_end = None
        self.to_follower.clear()

    def close_leader(self) -> None:
        """The leader closes its end: nothing reaches it any more."""
        self.leader_end = None
        self.to_leader.clear()

    def send_to_leader(self, message: FollowerMessage) -> None:
        if self.leader_end is not None and not self.is_broken:
            self.to_leader.append(message)

    def send_to_follower(self, message: LeaderMessage) -> None:
        if self.follower_end is not None and not self.is_broken:
            self.to_follower.append(message)

    def break_off(self) -> None:
        """Lose all messages under way, and all later ones."""
        self.is_broken = True
        self.to_leader.clear()
        self.to_follower.clear()


class Network:
    """All connections, and the directions that are cut."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of members: the first cannot send to the second."""

    def can_connect(self, follower: str, leader: str) -> bool:
        return not {(follower, leader), (leader, follower)} & self.cuts

    def ready(self) -> list[tuple[Connection, bool]]:
        """The connections at which something can arrive, and whether at the leader."""
        found = []
        for each in self.connections:
            if each.leader_end is not None and (
                each.is_broken
                or (
                    (each.follower, each.leader) not in self.cuts
                    and (each.to_leader or each.follower_end is None)
                )
            ):
                found.append((each, True))
            if each.follower_end is not None and (
                each.is_broken
                or (
                    (each.leader, each.follower) not in self.cuts
                    and (each.to_follower or each.leader_end is None)
                )
            ):
                found.append((each, False))
        return found

    def deliver(self, connection: Connection, count: int, *, is_to_leader: bool) -> None:
        """Let up to `count` messages arrive, or else the end of the connection."""
        if is_to_leader:
            self._deliver_to_leader(connection, count)
        else:
            self._deliver_to_follower(connection, count)
        self.connections = [each for each in self.connections if not each.is_over]

    def _deliver_to_leader(self, connection: Connection, count: int) -> None:
        end = connection.leader_end
        assert end is not None
        if not connection.to_leader:
            connection.close_leader()
            end.on_follower_closed(connection)
        while connection.to_leader and count and connection.leader_end is end:
            count -= 1
            end.on_follower_message(connection, connection.to_leader.popleft())

    def _deliver_to_follower(self, connection: Connection, count: int) -> None:
        end = connection.follower_end
        assert end is not None
        waiting = connection.to_follower
        if waiting:
            messages = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            end.on_leader_messages(connection, messages)
        else:
            connection.close_follower()
            end.on_leader_closed(connection)

    def drop_process(self, end: object) -> None:
        """A process has ended. Messages that it sent before may still arrive."""
        for each in self.connections:
            if each.follower_end is end:
                each.close_follower()
            if each.leader_end is end:
                each.close_leader()
        self.connections = [each for each in self.connections if not each.is_over]
