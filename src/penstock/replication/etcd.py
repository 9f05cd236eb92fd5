"""Coordination with etcd: the record of a node, and the entries of its running members.

    /penstock/CLUSTER/NODE/record        JSON of the NodeRecord
    /penstock/CLUSTER/NODE/alive/MEMBER  JSON of the MemberAddress; deleted when its lease expires

`EtcdCoordinator` watches both for one node. It reads all keys, and then watches all changes after
the revision of this read. After any failure it starts again, with the next endpoint. A watch whose
TCP connection is dead would be silent for ever; therefore the coordinator also reads all keys
periodically. If such a read fails, or finds changes that the watch does not report, the coordinator
closes the connection and starts again.

`read_cluster` and `write_record` are for commands, which need neither a watch nor an entry.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from penstock.common import names
from penstock.common.errors import EtcdError, ReplicationError
from penstock.common.logs import Logger
from penstock.replication.coordination import ClusterView, ViewListener, WriteResult
from penstock.replication.etcd_client import (
    EtcdClient,
    EtcdConfig,
    EtcdWatch,
    KeyEvent,
    KeyValue,
    LeaseExpiredError,
    RangeResponse,
)
from penstock.replication.node_record import (
    MemberAddress,
    NodeRecord,
    decode_record,
    encode_record,
)

__all__ = ["LEASE_SECONDS", "EtcdCoordinator", "read_cluster", "write_record"]

LEASE_SECONDS = 5

# Delays between attempts to connect: each is twice the one before.
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 2.0

# Interval at which a member checks whether another process still holds its entry.
HELD_ENTRY_SECONDS = 1.0

# Time limit for deleting the entry at the end; without it, the lease expires a little later.
REVOKE_SECONDS = 1.0

_RECORD = "record"
_ALIVE = "alive/"

_address_decoder = msgspec.json.Decoder(MemberAddress)


class EtcdCoordinator:
    """Implements `Coordinator`. Create and use it in the thread of a running event loop. After
    `close` has been called, neither the listener nor the callback of a write is called."""

    def __init__(
        self,
        config: EtcdConfig,
        *,
        cluster: str,
        node: str,
        member: str,
        log: Logger,
        lease_seconds: int = LEASE_SECONDS,
    ) -> None:
        """Raises ReplicationError if a name is invalid."""
        _check_name("member", member)
        self._prefix = _node_prefix(cluster, node)
        self._title = f"node {node} of cluster {cluster}"
        self._log = log
        self._client = EtcdClient(config)
        self._check_seconds = lease_seconds / 3
        self._listener: ViewListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The entry has its own client: if one server of etcd hangs, the lease must be renewed by
        # another server before it expires, however late the watch notices the failure.
        self._entry = _MemberEntry(
            EtcdClient(config), f"{self._prefix}{_ALIVE}{member}", member, lease_seconds, log
        )
        self._is_closed = False
        self._is_connected: bool | None = None  # None before the first attempt has ended
        self._retry_delay = _RetryDelay()
        self._keys: dict[str, KeyValue] = {}  # by the part after the prefix
        self._view: ClusterView | None = None
        self._error_text = ""  # of the last error passed to the listener
        self._cluster_id = ""
        self._last_revision = 0

    def start(self, listener: ViewListener) -> None:
        assert self._listener is None, "it is already started"
        self._listener = listener
        self._spawn(self._run())

    def write(
        self, record: NodeRecord, expected_revision: int, done: Callable[[WriteResult], None]
    ) -> None:
        self._spawn(self._write(record, expected_revision, done))

    def announce(self, address: MemberAddress) -> None:
        is_first = self._entry.address is None
        self._entry.announce(address)
        if is_first:
            self._spawn(self._entry.maintain())

    async def close(self) -> None:
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._entry.close()
        self._client.close()

    # Watch.

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except EtcdError as error:
                self._on_failure(error)
            except Exception as bug:  # noqa: BLE001 (reported; the watch must go on)
                self._log.exception("etcd: internal error - %r", bug)
                self._set_connected(is_connected=False)
            self._client.use_next_endpoint()
            await asyncio.sleep(self._retry_delay.next())

    async def _follow(self) -> None:
        """Reads all keys and watches them until something fails. Raises EtcdError."""
        found = await self._client.read_prefix(self._prefix)
        self._check_identity(found)
        self._keys = self._by_name(found.kvs)
        async with self._client.watch_prefix(self._prefix, found.header.revision + 1) as watch:
            self._on_connected()
            await self._receive(watch)

    async def _receive(self, watch: EtcdWatch) -> None:
        """Applies the changes, and checks periodically that the watch is alive. Raises
        EtcdError."""
        now = asyncio.get_running_loop().time
        next_check = now() + self._check_seconds
        is_late = False  # The last check found changes that the watch had not reported.
        while True:
            for event in await watch.receive(seconds=max(0.0, next_check - now())):
                self._apply(event)
                is_late = False
                self._retry_delay.reset()
            if now() < next_check:
                continue
            found = await self._client.read_prefix(self._prefix)
            self._check_identity(found)
            next_check = now() + self._check_seconds
            self._retry_delay.reset()
            was_late, is_late = is_late, self._by_name(found.kvs) != self._keys
            if was_late and is_late:
                raise EtcdError(f"etcd at {self._client.endpoint}: the watch misses changes")

    def _by_name(self, kvs: list[KeyValue]) -> dict[str, KeyValue]:
        return {each.key.removeprefix(self._prefix): each for each in kvs}

    def _check_identity(self, found: RangeResponse) -> None:
        """Raises EtcdError if this is not the etcd that was used before. Older data, such as a
        restored backup, may name a former leader; the next leader would then get an epoch that was
        used before."""
        header = found.header
        if self._cluster_id not in ("", header.cluster_id):
            text = f"etcd at {self._client.endpoint} belongs to another etcd cluster than before"
            raise EtcdError(text, is_permanent=True)
        if header.revision < self._last_revision:
            raise EtcdError(
                f"etcd at {self._client.endpoint} has lost data: its revision is "
                f"{header.revision}, and was {self._last_revision}",
                is_permanent=True,
            )
        self._cluster_id = header.cluster_id
        self._last_revision = header.revision

    def _apply(self, event: KeyEvent) -> None:
        name = event.kv.key.removeprefix(self._prefix)
        if event.type == "DELETE":
            self._keys.pop(name, None)
        else:
            self._keys[name] = event.kv
        self._last_revision = max(self._last_revision, event.kv.mod_revision)
        self._deliver()

    # Calls of the listener.

    def _on_connected(self) -> None:
        self._entry.retry_now()
        if self._is_connected is False:
            self._log.info("etcd: connected to %s", self._client.endpoint)
        self._set_connected(is_connected=True)
        self._view = None
        self._deliver()

    def _on_failure(self, error: EtcdError) -> None:
        self._log.repeating_error(str(error), "etcd: %s", error)
        self._set_connected(is_connected=False)
        if error.is_permanent:
            self._report(error)

    def _set_connected(self, *, is_connected: bool) -> None:
        if is_connected is not self._is_connected and self._listener is not None:
            self._is_connected = is_connected
            self._listener.on_connection(is_connected=is_connected)

    def _deliver(self) -> None:
        """Pass the view to the listener, if it has changed."""
        try:
            view = _build_view(self._title, self._keys)
        except ReplicationError as error:
            self._log.repeating_error(str(error), "etcd: %s", error)
            self._report(error)
            return
        self._error_text = ""
        self._entry.on_view(view)
        if view != self._view and self._listener is not None:
            self._view = view
            self._listener.on_view(view)

    def _report(self, error: ReplicationError) -> None:
        """Pass an error to the listener, but not the same one twice in a row."""
        if str(error) != self._error_text and self._listener is not None:
            self._error_text = str(error)
            self._listener.on_error(error)

    # Writes.

    async def _write(
        self, record: NodeRecord, expected_revision: int, done: Callable[[WriteResult], None]
    ) -> None:
        try:
            is_stored = await self._client.swap(
                f"{self._prefix}{_RECORD}",
                encode_record(record),
                expected_mod_revision=expected_revision,
            )
        except EtcdError as error:
            self._log.repeating_error(str(error), "etcd: result of a write unknown: %s", error)
            if error.is_permanent:
                self._report(error)
            result = WriteResult.UNKNOWN
        else:
            result = WriteResult.STORED if is_stored else WriteResult.CONFLICT
        done(result)

    # Tasks.

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        assert not self._is_closed, "it is closed"
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._log.exception("etcd: internal error - %r", bug, error=bug)


class _RetryDelay:
    """Growing delays between attempts."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._seconds = RETRY_SECONDS_MIN

    def next(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, RETRY_SECONDS_MAX)
        return seconds


class _MemberEntry:
    """The entry of this member, with its lease."""

    def __init__(
        self, client: EtcdClient, key: str, member: str, lease_seconds: int, log: Logger
    ) -> None:
        self.address: MemberAddress | None = None
        self._client = client
        self._key = key
        self._member = member
        self._lease_seconds = lease_seconds
        self._log = log
        self._lease = 0  # 0: there is none.
        self._is_stored = False
        self._is_held_by_other = False
        self._renew_at = 0.0
        self._retry_delay = _RetryDelay()
        self._wake_up = asyncio.Event()

    def announce(self, address: MemberAddress) -> None:
        self.address = address
        self._is_stored = False
        self._wake_up.set()

    def retry_now(self) -> None:
        """Retry at once, because etcd can be reached again."""
        self._retry_delay.reset()
        self._wake_up.set()

    def on_view(self, view: ClusterView) -> None:
        """Store the entry again if it was deleted, or if another process that held it has gone."""
        if self.address is None:
            return
        found = view.alive.get(self._member)
        if (self._is_stored or self._is_held_by_other) and found is None:
            self._is_stored = False
            self._wake_up.set()

    async def maintain(self) -> None:
        """Store the entry and keep its lease alive, for ever."""
        now = asyncio.get_running_loop().time
        while True:
            self._wake_up.clear()
            try:
                await self._update()
            except LeaseExpiredError:
                self._lease = 0
                wait_seconds = self._retry_delay.next()
            except EtcdError as error:
                self._log.repeating_error(str(error), "etcd: %s", error)
                self._client.use_next_endpoint()
                wait_seconds = self._retry_delay.next()
            else:
                self._retry_delay.reset()
                wait_seconds = self._renew_at - now()
                if not self._is_stored:
                    wait_seconds = min(wait_seconds, HELD_ENTRY_SECONDS)
            try:
                async with asyncio.timeout(max(0.0, wait_seconds)):
                    await self._wake_up.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Delete the entry, if etcd answers soon. `maintain` must not be running."""
        if self._lease:
            await self._revoke()
        self._client.close()

    async def _revoke(self) -> None:
        try:
            async with asyncio.timeout(REVOKE_SECONDS):
                await self._client.revoke_lease(self._lease)
        except LeaseExpiredError:
            pass  # The entry has gone with it.
        except (EtcdError, TimeoutError) as error:
            self._log.warning(
                "etcd: cannot delete the entry of this member: %s; it expires after %d s",
                str(error) or "timed out",
                self._lease_seconds,
            )

    async def _update(self) -> None:
        """Renew the lease or create one, and store the entry, if necessary. Raises EtcdError."""
        now = asyncio.get_running_loop().time
        if self._lease and now() >= self._renew_at:
            renew_at = now() + self._lease_seconds / 3
            if not await self._client.keep_lease_alive(self._lease):
                raise LeaseExpiredError("the lease of this member has expired")
            self._renew_at = renew_at
        if not self._lease:
            renew_at = now() + self._lease_seconds / 3
            self._is_stored = False
            self._lease = await self._client.grant_lease(self._lease_seconds)
            self._renew_at = renew_at
        if not self._is_stored:
            await self._store()

    async def _store(self) -> None:
        """Store the entry, unless another process holds it. Raises EtcdError."""
        address = self.address
        assert address is not None
        found = await self._client.read_key(self._key)
        holder = None if found is None else _decode_address(found.value)
        if holder is not None and holder.session != address.session:
            if not self._is_held_by_other:
                self._is_held_by_other = True
                self._log.warning(
                    "member %s is already running, at %s:%d; waiting until it has stopped",
                    self._member,
                    holder.broadcast_address,
                    holder.tcp_port,
                )
            return
        is_stored = await self._client.swap(
            self._key,
            msgspec.json.encode(address),
            expected_mod_revision=0 if found is None else found.mod_revision,
            lease=self._lease,
        )
        if not is_stored:
            self._wake_up.set()  # It has changed since it was read: look again.
            return
        self._is_held_by_other = False
        # `announce` may have been called meanwhile.
        self._is_stored = address is self.address


# For commands.


async def read_cluster(config: EtcdConfig, cluster: str) -> dict[str, ClusterView]:
    """All nodes of a cluster, by name. Tries all endpoints. Raises ReplicationError, also if a
    record is invalid."""
    prefix = _cluster_prefix(cluster)
    client = EtcdClient(config)
    try:
        found = await client.read_prefix_anywhere(prefix)
    finally:
        client.close()
    nodes: dict[str, dict[str, KeyValue]] = {}
    for each in found.kvs:
        node, slash, name = each.key.removeprefix(prefix).partition("/")
        if slash:
            nodes.setdefault(node, {})[name] = each
    return {
        node: _build_view(f"node {node} of cluster {cluster}", keys)
        for node, keys in sorted(nodes.items())
    }


async def write_record(
    config: EtcdConfig, cluster: str, node: str, record: NodeRecord, expected_revision: int
) -> WriteResult:
    """Store the record of a node if its revision is still the expected one. Tries all endpoints
    until one answers, but requests the change only once. Raises ReplicationError if no endpoint
    answers, or if etcd rejects the user or the password; nothing was changed then."""
    prefix = _node_prefix(cluster, node)
    client = EtcdClient(config)
    try:
        await client.read_prefix_anywhere(prefix)  # finds an endpoint that answers
        try:
            is_stored = await client.swap(
                f"{prefix}{_RECORD}", encode_record(record), expected_mod_revision=expected_revision
            )
        except EtcdError as error:
            if error.is_permanent:
                raise
            return WriteResult.UNKNOWN
    finally:
        client.close()
    return WriteResult.STORED if is_stored else WriteResult.CONFLICT


# Keys and values.


def _check_name(what: str, name: str) -> None:
    if not names.is_valid(name) or names.is_ephemeral(name):
        raise ReplicationError(
            f"invalid name of a {what}: {name!r}; it has 1 to {names.NAME_BYTES_MAX} characters "
            "out of letters, digits and ._-"
        )


def _cluster_prefix(cluster: str) -> str:
    _check_name("cluster", cluster)
    return f"/penstock/{cluster}/"


def _node_prefix(cluster: str, node: str) -> str:
    _check_name("node", node)
    return f"{_cluster_prefix(cluster)}{node}/"


def _build_view(title: str, keys: Mapping[str, KeyValue]) -> ClusterView:
    """The view that the keys of a node contain. An entry that cannot be decoded is left out.
    `title` names the node. Raises ReplicationError if the record is invalid."""
    found = keys.get(_RECORD)
    try:
        record = None if found is None else decode_record(found.value)
    except ReplicationError as error:
        raise ReplicationError(f"{title}: {error}") from None
    entries = {
        name.removeprefix(_ALIVE): _decode_address(each.value)
        for name, each in keys.items()
        if name.startswith(_ALIVE)
    }
    alive = {member: address for member, address in entries.items() if address is not None}
    return ClusterView(record, 0 if found is None else found.mod_revision, alive)


def _decode_address(value: bytes) -> MemberAddress | None:
    try:
        return _address_decoder.decode(value)
    except msgspec.MsgspecError:
        return None
