"""nsqlookupd, nsqds and nsqadmin in one process, on one event loop: the cluster of `penstock up`.

Each daemon has its own ports; each nsqd also has its own folder and node id. Daemons stop in
reverse order of their start. If one cannot start, the daemons that already run are stopped.

With replicas, the nsqds are members of one replicated node, and etcd runs as a process of its own.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import uvloop

from penstock import __version__
from penstock.cli.command_options import NSQD_HTTP_ADDRESS, NSQD_TCP_ADDRESS
from penstock.cli.local_etcd import LocalEtcd, free_port
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ConfigError, ReplicationError, StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.common.process import (
    freeze_gc,
    ignore_signals,
    raise_open_files_limit,
    stop_on_signals,
)
from penstock.nsqd.daemon import Nsqd
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.options import check as check_nsqd
from penstock.nsqd.replicated import ReplicatedNsqd
from penstock.nsqd.shards import PORT_STEP
from penstock.nsqlookupd.daemon import Nsqlookupd
from penstock.nsqlookupd.options import NsqlookupdOptions
from penstock.nsqlookupd.options import check as check_nsqlookupd

if TYPE_CHECKING:
    from penstock.nsqadmin.daemon import Nsqadmin

CLUSTER_NAME = "local"

# Time limit for the first leader; after an unclean stop, the entries in etcd expire first.
LEADER_SECONDS = 60.0

__all__ = ["LocalCluster", "LocalClusterConfig", "run_cluster"]

_ALL_INTERFACES = ("0.0.0.0", "::", "[::]")  # as given by the user, and as reported by the socket


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClusterConfig:
    """Configuration of a local cluster. Port 0 means any free port."""

    nodes: int
    replicas: int = 1  # above 1: the members of one replicated node, instead of `nodes`
    data_path: str
    host: str
    nsqd_port: int
    lookupd_port: int
    admin_port: int | None  # None: no nsqadmin
    retention_seconds: float = 0.0
    log_level: LogLevel = LogLevel.WARN

    def addresses(self, port: int, node: int = 0) -> tuple[str, str]:
        """TCP and HTTP address. Raises ConfigError if a port exceeds 65535."""
        tcp_port = port + node * PORT_STEP if port else 0
        http_port = tcp_port + 1 if port else 0
        if http_port > 65535:
            raise ConfigError(
                f"port {http_port} of node {node + 1} exceeds 65535: choose a lower --nsqd-port"
            )
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return f"{host}:{tcp_port}", f"{host}:{http_port}"

    @property
    def broadcast_address(self) -> str:
        """Address announced to clients: the hostname if the cluster listens on all interfaces."""
        return os.uname().nodename if self.host in _ALL_INTERFACES else self.host

    def folder(self, node: int) -> str:
        """Data path of a node."""
        return os.path.join(self.data_path, f"nsqd-{node + 1}")


def run_cluster(config: LocalClusterConfig, echo: Callable[[str], None]) -> None:
    """Run the cluster until a signal stops it. Raises Error if it cannot start."""
    raise_open_files_limit()
    uvloop.run(_serve(config, echo))


async def _serve(config: LocalClusterConfig, echo: Callable[[str], None]) -> None:
    log = Logger("[penstock] ", config.log_level)
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    async with LocalCluster(config, stop.set) as cluster:
        echo(cluster.announcement())
        freeze_gc()
        await stop.wait()
        echo("\nstopping")
        cluster.check_members()
    ignore_signals()
    echo(f"stopped; messages stay in {config.data_path}")


class LocalCluster:
    """A running cluster, as an async context manager."""

    def __init__(self, config: LocalClusterConfig, stop: Callable[[], None]) -> None:
        """`stop` is called when all nsqds have drained."""
        self._config = config
        self._stop = stop
        self._nsqlookupd: Nsqlookupd | None = None
        self._nsqds: dict[int, Nsqd] = {}
        self._etcd: LocalEtcd | None = None
        self._members: dict[int, ReplicatedNsqd] = {}
        self._member_addresses: dict[int, tuple[str, str]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._nsqadmin: Nsqadmin | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start_nsqlookupd()
            if self._config.replicas > 1:
                await self._start_members(self._config.replicas)
            else:
                for node in range(self._config.nodes):
                    await self._start_nsqd(node)
            if self._config.admin_port is not None:
                await self._start_nsqadmin(self._config.admin_port)
        except BaseException:
            await self._stop_all()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_all()

    def check_members(self) -> None:
        """Raise the error of a member that cannot take part."""
        for member in self._members.values():
            if member.error is not None:
                raise member.error

    def announcement(self) -> str:
        """The text for the user: addresses, data paths and example commands."""
        assert self._nsqlookupd is not None
        rows = [("nsqlookupd", *_addresses_of(self._nsqlookupd), "")]
        rows += [
            (f"nsqd-{node + 1}", *_addresses_of(nsqd), self._config.folder(node))
            for node, nsqd in self._nsqds.items()
        ]
        rows += [
            (f"nsqd-{number + 1}", _reachable(tcp), _reachable(http), self._config.folder(number))
            for number, (tcp, http) in self._member_addresses.items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"  {name:{widths[0]}}   tcp {tcp:{widths[1]}}   http {http:{widths[2]}}   {folder}"
            for name, tcp, http, folder in rows
        ]
        return "\n".join(
            [
                f"Penstock {__version__} is up",
                "",
                *map(str.rstrip, lines),
                "",
                *self._nsqadmin_lines(),
                f"  publish   penstock pub greetings hello{self._address_flag('tcp')}",
                f"  consume   penstock sub greetings printer{self._address_flag('tcp')}",
                f"  watch     penstock top{self._address_flag('http')}",
                *self._replication_lines(),
                "",
                "Ctrl-C stops it.",
            ]
        )

    def _nsqadmin_lines(self) -> list[str]:
        if self._nsqadmin is None or self._nsqadmin.http is None:
            return []
        return [f"  browse    http://{_reachable(self._nsqadmin.http.address)}/"]

    def _replication_lines(self) -> list[str]:
        if self._etcd is None:
            return []
        return [
            f"  members   penstock cluster members --etcd {self._etcd.url} --cluster {CLUSTER_NAME}"
        ]

    def _address_flag(self, protocol: str) -> str:
        """The flag that a command needs to find this cluster; empty if the default suffices."""
        assert self._nsqlookupd is not None
        if len(self._nsqds) > 1 or self._members:
            return f" --lookupd-http-address {_addresses_of(self._nsqlookupd)[1]}"
        tcp, http = _addresses_of(self._nsqds[0])
        address, default = (
            (tcp, NSQD_TCP_ADDRESS) if protocol == "tcp" else (http, NSQD_HTTP_ADDRESS)
        )
        return "" if address == default else f" --nsqd-{protocol}-address {address}"

    # Starting, in the order of dependencies.

    async def _start_nsqlookupd(self) -> None:
        config = self._config
        tcp_address, http_address = config.addresses(config.lookupd_port)
        options = NsqlookupdOptions(
            tcp_address=tcp_address,
            http_address=http_address,
            broadcast_address=config.broadcast_address,
        )
        check_nsqlookupd(options)
        self._nsqlookupd = Nsqlookupd(options, Logger("[nsqlookupd] ", config.log_level))
        with _adding_flag_to_error("--lookupd-port"):
            await self._nsqlookupd.start()

    async def _start_nsqd(self, node: int) -> None:
        config = self._config
        assert self._nsqlookupd is not None
        tcp_address, http_address = config.addresses(config.nsqd_port, node)
        options = NsqdOptions(
            node_id=node + 1,
            tcp_address=tcp_address,
            http_address=http_address,
            lookupd_tcp_addresses=(_addresses_of(self._nsqlookupd)[0],),
            data_path=_make_folder(config.folder(node)),
            retention_time_ns=round(config.retention_seconds * SECOND_NS),
            broadcast_address=config.broadcast_address,
        )
        check_nsqd(options)
        log = Logger(f"[nsqd-{node + 1}] ", config.log_level)
        self._nsqds[node] = Nsqd(options, log, stop=lambda: self._stop_drained(node))
        with _adding_flag_to_error("--nsqd-port"):
            await self._nsqds[node].start()

    async def _start_members(self, count: int) -> None:
        """Start etcd and the members, and wait until the node accepts messages."""
        config = self._config
        self._etcd = LocalEtcd(Path(_make_folder(config.data_path), "etcd"))
        await self._etcd.start()
        for number in range(count):
            tcp_address, http_address = config.addresses(config.nsqd_port, number)
            if not config.nsqd_port:  # A member announces its ports before it listens.
                host = tcp_address.rpartition(":")[0]
                tcp_address, http_address = (f"{host}:{free_port()}" for _ in range(2))
            self._member_addresses[number] = tcp_address, http_address
            await self._start_member(number, count)
        await self._wait_until_writable()

    async def _start_member(self, number: int, count: int) -> None:
        config = self._config
        assert self._nsqlookupd is not None
        assert self._etcd is not None
        tcp_address, http_address = self._member_addresses[number]
        options = NsqdOptions(
            node_id=1,
            tcp_address=tcp_address,
            http_address=http_address,
            https_address="",
            lookupd_tcp_addresses=(_addresses_of(self._nsqlookupd)[0],),
            data_path=_make_folder(config.folder(number)),
            retention_time_ns=round(config.retention_seconds * SECOND_NS),
            broadcast_address=config.broadcast_address,
            cluster=CLUSTER_NAME,
            node="nsqd",
            member=f"nsqd-{number + 1}",
            etcd_addresses=(self._etcd.url,),
            replicas=count,
        )
        check_nsqd(options)
        log = Logger(f"[nsqd-{number + 1}] ", config.log_level)
        # A member that cannot take part, or was drained, stops the cluster.
        self._members[number] = member = ReplicatedNsqd(options, log, self._stop)
        with _adding_flag_to_error("--nsqd-port"):
            await member.start()

    async def _wait_until_writable(self) -> None:
        """Wait until a member leads, and enough members are in sync."""
        deadline = asyncio.get_running_loop().time() + LEADER_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            self.check_members()
            for member in self._members.values():
                status = member.status()
                if status.is_leading and len(status.in_sync) >= status.min_in_sync:
                    return
            await asyncio.sleep(0.05)
        raise ReplicationError(
            f"the node has no leader after {LEADER_SECONDS:g} s: use --log-level info to see why"
        )

    async def _start_nsqadmin(self, port: int) -> None:
        # Imported here: without nsqadmin, its web framework is not loaded.
        from penstock.nsqadmin.daemon import Nsqadmin  # noqa: PLC0415
        from penstock.nsqadmin.options import NsqadminOptions  # noqa: PLC0415
        from penstock.nsqadmin.options import check as check_nsqadmin  # noqa: PLC0415

        assert self._nsqlookupd is not None
        options = NsqadminOptions(
            http_address=self._config.addresses(port)[0],
            lookupd_http_addresses=(_addresses_of(self._nsqlookupd)[1],),
        )
        check_nsqadmin(options)
        self._nsqadmin = Nsqadmin(options, Logger("[nsqadmin] ", self._config.log_level))
        with _adding_flag_to_error("--admin-port"):
            await self._nsqadmin.start()

    # Stopping.

    def _stop_drained(self, node: int) -> None:
        """Stop a drained node; after the last node, stop the cluster."""
        nsqd = self._nsqds.pop(node, None)
        if nsqd is None:
            return  # The whole cluster is stopping.
        self._leaving.add(asyncio.get_running_loop().create_task(nsqd.stop()))
        if not self._nsqds:
            self._stop()

    async def _stop_all(self) -> None:
        """Stop nsqlookupd last, so that the nsqds can unregister."""
        nsqds, self._nsqds = self._nsqds, {}
        async with AsyncExitStack() as stopping:
            if self._nsqlookupd is not None:
                stopping.push_async_callback(self._nsqlookupd.stop)
            if self._etcd is not None:
                stopping.push_async_callback(self._etcd.stop)
            stopping.push_async_callback(self._stop_members)
            for nsqd in nsqds.values():
                stopping.push_async_callback(nsqd.stop)
            if self._nsqadmin is not None:
                stopping.push_async_callback(self._nsqadmin.stop)
            await asyncio.gather(*self._leaving)

    async def _stop_members(self) -> None:
        """Stop all members at once, so that none of them takes over meanwhile."""
        await asyncio.gather(*(member.stop() for member in self._members.values()))


def _addresses_of(daemon: Nsqd | Nsqlookupd) -> tuple[str, str]:
    """TCP and HTTP address of a daemon, as reached from this machine."""
    assert daemon.tcp is not None
    assert daemon.http is not None
    return _reachable(daemon.tcp.address), _reachable(daemon.http.address)


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in _ALL_INTERFACES else address


def _make_folder(folder: str) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as failure:
        raise StorageError(f"cannot create {folder} - {failure.strerror}") from failure
    return folder


@contextmanager
def _adding_flag_to_error(flag: str) -> Iterator[None]:
    """Append the flag that sets the port to the text of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; use {flag} to choose another") from error
