"""A follower of a replicated nsqd: keeps a connection to the leader and a copy of its data path."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.common.errors import ReplicationError, StorageError
from penstock.common.logs import Logger
from penstock.net.tls import ReloadableContext
from penstock.nsqd.replication_streams import LeaderStream
from penstock.replication.copied_data_path import CopiedDataPath, CopyFsync
from penstock.replication.follower import Follower
from penstock.replication.node_record import MemberAddress
from penstock.replication.stream import Hello
from penstock.storage import RealFiles
from penstock.storage.layout import Issue

__all__ = ["Following"]

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.5


class Following:
    """Follows the leader that was last given to `follow`, and reconnects to it."""

    def __init__(
        self,
        path: str,
        log: Logger,
        new_hello: Callable[[int], Hello],
        *,
        copy: CopiedDataPath | None = None,
        on_damage: Callable[[], None],
        sync_seconds: float,
        silence_seconds: float,
        tls: ReloadableContext | None,
    ) -> None:
        """`new_hello` returns the first message for a leader of the given epoch. `copy` is the data
        path, if it is open already; otherwise it is opened later, and `on_damage` is called if it
        is damaged. Data is fsynced at least every `sync_seconds`. If the leader sends nothing for
        `silence_seconds`, the connection is closed and made again."""
        self._path = path
        self._tls = tls
        self._log = log
        self._new_hello = new_hello
        self._sync_seconds = sync_seconds
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="follower-sync")
        self._running_fsync: asyncio.Future[OSError | None] | None = None
        self._copy = copy
        self._on_damage = on_damage
        self._stream: LeaderStream | None = None
        self._target: tuple[MemberAddress, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""

    @property
    def follower(self) -> Follower | None:
        """The follower of the current connection."""
        return self._stream.follower if self._stream is not None else None

    @property
    def leader(self) -> MemberAddress | None:
        """Address of the current leader; None if no leader is followed."""
        return self._target[0] if self._target is not None else None

    @property
    def last_contact_seconds(self) -> float | None:
        """Time since the leader has sent something; None if there is no connection."""
        if self._stream is None or self._stream.follower is None:
            return None
        return self._loop.time() - self._stream.last_received_at

    def follow(self, leader: MemberAddress, epoch: int) -> None:
        """Connect to this leader, and disconnect from any other."""
        self.stop()
        self._target = leader, epoch
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stop acknowledging at once, and close the connection to the leader."""
        self._target = None
        if self._stream is not None:
            self._stream.fail(None)

    async def close(self) -> None:
        """Stop, and close the copy. Raises StorageError."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._wait_for_fsync()
        self._threads.shutdown(wait=False)
        if self._copy is not None and self._copy.has_failed:
            self._abandon_copy()
        copy, self._copy = self._copy, None
        if copy is not None:
            await self._loop.run_in_executor(None, copy.close)

    async def _run(self) -> None:
        while self._target is not None:
            target = leader, epoch = self._target
            try:
                await self._follow_once(leader, epoch)
            except (OSError, ReplicationError, StorageError) as error:
                self._report(leader, error)
            except Exception as bug:  # noqa: BLE001 (reported; the copy is opened again)
                self._log.exception("internal error while following - %r", bug, error=bug)
                self._abandon_copy()
            if self._target is target:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_once(self, leader: MemberAddress, epoch: int) -> None:
        copy = self._copy
        if copy is None:
            copy = self._copy = CopiedDataPath.open(self._path, RealFiles(), self._on_issue)

        def new_follower(stream: LeaderStream) -> Follower:
            return Follower(
                copy,
                self._new_hello(epoch),
                stream,
                self._run_fsync,
                stream.fail,
                lambda: self._on_accepted(leader),
            )

        target = self._target
        stream = self._stream = LeaderStream(new_follower)
        try:
            await self._connect(stream, leader)
            error = await self._until_closed(stream)
        finally:
            stream.fail(None)
            self._stream = None
            await self._wait_for_fsync()
            if copy.has_failed:
                # Also if the stream was closed for another reason while the fsync ran.
                self._abandon_copy()
        if isinstance(error, StorageError):
            # What is on the disk is unknown: find out again.
            self._abandon_copy()
        if error is not None:
            raise error
        if self._target is target:
            raise ReplicationError("the connection was closed")

    async def _connect(self, stream: LeaderStream, leader: MemberAddress) -> None:
        """Connect, or return when the stream is closed meanwhile, so that a leader whose machine is
        lost does not delay the connection to the next one. Raises OSError and ReplicationError."""
        connecting = self._loop.create_task(
            self._loop.create_connection(
                lambda: stream,
                leader.broadcast_address,
                leader.tcp_port,
                ssl=self._tls.current if self._tls is not None else None,
            )
        )
        ends: tuple[asyncio.Future[Any], ...] = connecting, stream.closed
        try:
            await asyncio.wait(ends, timeout=_CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                connecting.result()
            elif not stream.closed.done():
                raise ReplicationError(f"no connection within {_CONNECT_SECONDS:g} s")
        finally:
            connecting.cancel()

    async def _until_closed(self, stream: LeaderStream) -> Exception | None:
        """Wait for the end of the connection, and fsync periodically until then. Returns the error
        that has ended it, if any."""
        while True:
            await asyncio.wait([stream.closed], timeout=self._sync_seconds)
            if stream.closed.done():
                return stream.closed.result()
            if self._loop.time() - stream.last_received_at > self._silence_seconds:
                return ReplicationError("the leader is silent")
            if stream.follower is not None:
                stream.follower.sync_in_background()

    def _run_fsync(self, job: CopyFsync, done: Callable[[OSError | None], None]) -> None:
        def run() -> OSError | None:
            try:
                job.run()
            except OSError as error:
                return error
            return None

        future = self._loop.run_in_executor(self._threads, run)
        self._running_fsync = future

        def on_done(finished: "asyncio.Future[OSError | None]") -> None:
            self._running_fsync = None
            done(finished.result())

        future.add_done_callback(on_done)

    def _abandon_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.abandon()

    async def _wait_for_fsync(self) -> None:
        """Wait until no thread uses the files of the copy."""
        if self._running_fsync is not None:
            await asyncio.wait([self._running_fsync])
            await asyncio.sleep(0)  # The result is applied.

    def _on_accepted(self, leader: MemberAddress) -> None:
        self._last_error = ""
        self._log.info(
            "REPLICATION: following %s at %s:%d",
            leader.member,
            leader.broadcast_address,
            leader.tcp_port,
        )

    def _on_issue(self, issue: Issue) -> None:
        self._log.warning("%s", issue)
        if issue.is_damage:
            self._on_damage()

    def _report(self, leader: MemberAddress, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._last_error:
            self._last_error = text
            self._log.warning("REPLICATION: cannot follow %s: %s", leader.member, text)
