"""The follower: applies what the leader sends to its copy, and acknowledges it.

One `Follower` is one connection to a leader. It acknowledges once per read of the socket, whatever
the number of messages, and only what its copy holds: if the leader asks for it, after an fsync.

No sockets, no threads: `LeaderConnection` sends, and `run_fsync` runs the slow part of an fsync.
"""

from collections.abc import Callable
from typing import Protocol

from penstock.common.errors import ReplicationError
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.stream import (
    Ack,
    FollowerMessage,
    HaveAll,
    Hello,
    LeaderMessage,
    Refuse,
    Welcome,
)

__all__ = ["Follower", "LeaderConnection", "RunFsync"]

RunFsync = Callable[[CopyFsync, Callable[[OSError | None], None]], None]
"""Runs `CopyFsync.run` in a thread and then calls the function with its error, or with None."""


class LeaderConnection(Protocol):
    """The connection to the leader."""

    def send(self, message: FollowerMessage) -> None:
        """Send a message."""


class Follower:
    """Follows a leader on one connection."""

    def __init__(
        self,
        copy: CopiedDataPath,
        hello: Hello,
        connection: LeaderConnection,
        run_fsync: RunFsync,
        on_failure: Callable[[Exception], None],
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_failure` is called if an fsync fails; the copy must then be opened again.
        `on_accepted` is called when the leader has accepted this follower."""
        self.epoch = 0
        """Of the leader; 0 before its welcome."""
        self.position = 0
        """Number of messages applied."""
        self.acked_position = 0
        self._copy = copy
        self._hello = hello
        self._connection = connection
        self._run_fsync = run_fsync
        self._on_failure = on_failure
        self._on_accepted = on_accepted
        self._must_sync = False
        self._is_syncing = False
        self._is_stopped = False
        connection.send(hello)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def on_message(self, message: LeaderMessage) -> None:
        """Apply a message. Raises ReplicationError or StorageError; the connection must then be
        closed."""
        if self._is_stopped:
            return
        if self.epoch:
            self._copy.apply(message)
            self.position += 1
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Refuse):
            raise ReplicationError(f"the leader refuses this member: {message.reason}")
        else:
            raise ReplicationError("the leader has not sent a welcome")

    def on_read_end(self) -> None:
        """Acknowledge the messages of one read, all of which were applied."""
        if self._is_stopped or self.position == self.acked_position:
            return
        if not self._must_sync:
            self._acknowledge(self.position)
        elif not self._is_syncing:
            self._sync()

    def sync_in_background(self) -> None:
        """Fsync the data that was written since the last fsync. To be called once per
        `--sync-timeout`."""
        if not self._is_syncing and not self._is_stopped and self._copy.needs_sync:
            self._sync()

    def stop(self) -> None:
        """Stop acknowledging messages. If an fsync is running, the owner must wait for its end."""
        self._is_stopped = True

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.epoch < self._hello.epoch:
            raise ReplicationError(
                f"the leader has epoch {welcome.epoch}, but {self._hello.epoch} is known"
            )
        self.epoch = welcome.epoch
        self._must_sync = welcome.must_sync
        self._on_accepted()
        for topic in self._copy.start_stream():
            self._connection.send(topic)
        damaged = self._copy.take_received_damage()
        if damaged is not None:
            self._connection.send(damaged)
        self._connection.send(HaveAll())

    def _sync(self) -> None:
        position = self.position
        job = self._copy.begin_sync()
        self._is_syncing = True

        def on_done(error: OSError | None) -> None:
            self._is_syncing = False
            try:
                self._copy.end_sync(job, error)
                if not self._is_stopped and self._must_sync:
                    self._acknowledge(position)
                    self.on_read_end()
            except Exception as failure:  # noqa: BLE001 (passed to the owner)
                self._on_failure(failure)

        self._run_fsync(job, on_done)

    def _acknowledge(self, position: int) -> None:
        if position > self.acked_position:
            self.acked_position = position
            self._connection.send(Ack(position))
