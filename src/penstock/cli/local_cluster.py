"""nsqlookupd, nsqds and nsqadmin in one process, on one loop: what `penstock up` runs.

They are the daemons as they are, each with its own ports and, for an nsqd, its own folder and node
id. What is started first is stopped last; whatever cannot start takes down what had started before
it.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import uvloop

from penstock import __version__
from penstock.cli.command_options import NSQD_HTTP_ADDRESS, NSQD_TCP_ADDRESS
from penstock.common.clock import SECOND_NS
from penstock.common.errors import ConfigError, StorageError
from penstock.common.logs import Logger, LogLevel
from penstock.common.process import (
    ignore_signals,
    raise_open_files_limit,
    settle_memory,
    stop_on_signals,
)
from penstock.nsqd.daemon import Nsqd
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.options import check as check_nsqd
from penstock.nsqd.shards import PORT_STEP
from penstock.nsqlookupd.daemon import Nsqlookupd
from penstock.nsqlookupd.options import NsqlookupdOptions
from penstock.nsqlookupd.options import check as check_nsqlookupd

if TYPE_CHECKING:
    from penstock.nsqadmin.daemon import Nsqadmin

__all__ = ["ClusterPlan", "LocalCluster", "run_cluster"]

_ANYWHERE = ("0.0.0.0", "::", "[::]")  # as it is given, and as it is listened on


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What is to be started. A port of 0 is any that is free."""

    nodes: int
    data_path: str
    host: str
    nsqd_port: int
    lookupd_port: int
    admin_port: int | None  # None: no nsqadmin
    retention_seconds: float = 0.0
    log_level: LogLevel = LogLevel.WARN

    def addresses(self, port: int, node: int = 0) -> tuple[str, str]:
        """Of TCP and of HTTP. Raises ConfigError if there are no such ports."""
        tcp_port = port + node * PORT_STEP if port else 0
        http_port = tcp_port + 1 if port else 0
        if http_port > 65535:
            raise ConfigError(f"there is no port {http_port} for node {node + 1}")
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return f"{host}:{tcp_port}", f"{host}:{http_port}"

    @property
    def broadcast_address(self) -> str:
        """What others are told; one that serves everywhere is known by the host's name."""
        return os.uname().nodename if self.host in _ANYWHERE else self.host

    def folder(self, node: int) -> str:
        """Where a node keeps its messages."""
        return os.path.join(self.data_path, f"nsqd-{node + 1}")


def run_cluster(plan: ClusterPlan, say: Callable[[str], None]) -> None:
    """Runs it until it is told to stop. Raises penstock.common.errors.Error if it cannot start."""
    raise_open_files_limit()
    uvloop.run(_serve(plan, say))


async def _serve(plan: ClusterPlan, say: Callable[[str], None]) -> None:
    log = Logger("[penstock] ", plan.log_level)
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    async with LocalCluster(plan, stop.set) as cluster:
        say(cluster.announcement())
        settle_memory()
        await stop.wait()
        say("\nstopping")
    ignore_signals()
    say(f"stopped; messages stay in {plan.data_path}")


class LocalCluster:
    """A running cluster; a context manager."""

    def __init__(self, plan: ClusterPlan, stop: Callable[[], None]) -> None:
        """`stop` is called when every nsqd has been drained."""
        self._plan = plan
        self._stop = stop
        self._nsqlookupd: Nsqlookupd | None = None
        self._nsqds: dict[int, Nsqd] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._nsqadmin: Nsqadmin | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start_nsqlookupd()
            for node in range(self._plan.nodes):
                await self._start_nsqd(node)
            if self._plan.admin_port is not None:
                await self._start_nsqadmin(self._plan.admin_port)
        except BaseException:
            await self._stop_all()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_all()

    def announcement(self) -> str:
        """Who serves where, and what to do next."""
        assert self._nsqlookupd is not None
        rows = [("nsqlookupd", *_served(self._nsqlookupd), "")]
        rows += [
            (f"nsqd-{node + 1}", *_served(nsqd), self._plan.folder(node))
            for node, nsqd in self._nsqds.items()
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
                *self._browsing(),
                f"  publish   penstock pub greetings hello{self._found_by('tcp')}",
                f"  consume   penstock sub greetings printer{self._found_by('tcp')}",
                f"  watch     penstock top{self._found_by('http')}",
                "",
                "Ctrl-C stops it.",
            ]
        )

    def _browsing(self) -> list[str]:
        if self._nsqadmin is None or self._nsqadmin.http is None:
            return []
        return [f"  browse    http://{_reachable(self._nsqadmin.http.address)}/"]

    def _found_by(self, protocol: str) -> str:
        """The flag by which a command finds this cluster, if it does not by itself."""
        assert self._nsqlookupd is not None
        if len(self._nsqds) > 1:
            return f" --lookupd-http-address {_served(self._nsqlookupd)[1]}"
        tcp, http = _served(self._nsqds[0])
        address, default = (
            (tcp, NSQD_TCP_ADDRESS) if protocol == "tcp" else (http, NSQD_HTTP_ADDRESS)
        )
        return "" if address == default else f" --nsqd-{protocol}-address {address}"

    # Starting: first those whom the others have to know.

    async def _start_nsqlookupd(self) -> None:
        plan = self._plan
        tcp_address, http_address = plan.addresses(plan.lookupd_port)
        options = NsqlookupdOptions(
            tcp_address=tcp_address,
            http_address=http_address,
            broadcast_address=plan.broadcast_address,
        )
        check_nsqlookupd(options)
        self._nsqlookupd = Nsqlookupd(options, Logger("[nsqlookupd] ", plan.log_level))
        with _naming_flag("--lookupd-port"):
            await self._nsqlookupd.start()

    async def _start_nsqd(self, node: int) -> None:
        plan = self._plan
        assert self._nsqlookupd is not None
        tcp_address, http_address = plan.addresses(plan.nsqd_port, node)
        options = NsqdOptions(
            node_id=node + 1,
            tcp_address=tcp_address,
            http_address=http_address,
            lookupd_tcp_addresses=(_served(self._nsqlookupd)[0],),
            data_path=_made(plan.folder(node)),
            retention_time_ns=round(plan.retention_seconds * SECOND_NS),
            broadcast_address=plan.broadcast_address,
        )
        check_nsqd(options)
        log = Logger(f"[nsqd-{node + 1}] ", plan.log_level)
        self._nsqds[node] = Nsqd(options, log, stop=lambda: self._let_go(node))
        with _naming_flag("--nsqd-port"):
            await self._nsqds[node].start()

    async def _start_nsqadmin(self, port: int) -> None:
        # Here, because whoever does without it need not load its web framework.
        from penstock.nsqadmin.daemon import Nsqadmin  # noqa: PLC0415
        from penstock.nsqadmin.options import NsqadminOptions  # noqa: PLC0415
        from penstock.nsqadmin.options import check as check_nsqadmin  # noqa: PLC0415

        assert self._nsqlookupd is not None
        options = NsqadminOptions(
            http_address=self._plan.addresses(port)[0],
            lookupd_http_addresses=(_served(self._nsqlookupd)[1],),
        )
        check_nsqadmin(options)
        self._nsqadmin = Nsqadmin(options, Logger("[nsqadmin] ", self._plan.log_level))
        with _naming_flag("--admin-port"):
            await self._nsqadmin.start()

    # Stopping.

    def _let_go(self, node: int) -> None:
        """A node has been drained: it stops alone, and the last one stops the cluster."""
        nsqd = self._nsqds.pop(node, None)
        if nsqd is None:
            return  # All are being stopped already.
        self._leaving.add(asyncio.get_running_loop().create_task(nsqd.stop()))
        if not self._nsqds:
            self._stop()

    async def _stop_all(self) -> None:
        """nsqlookupd last, so that the nsqds can take leave of it."""
        nsqds, self._nsqds = self._nsqds, {}
        async with AsyncExitStack() as stopping:
            if self._nsqlookupd is not None:
                stopping.push_async_callback(self._nsqlookupd.stop)
            for nsqd in nsqds.values():
                stopping.push_async_callback(nsqd.stop)
            if self._nsqadmin is not None:
                stopping.push_async_callback(self._nsqadmin.stop)
            await asyncio.gather(*self._leaving)


def _served(daemon: Nsqd | Nsqlookupd) -> tuple[str, str]:
    """Where a daemon is reached from this machine, by TCP and by HTTP."""
    assert daemon.tcp is not None
    assert daemon.http is not None
    return _reachable(daemon.tcp.address), _reachable(daemon.http.address)


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in _ANYWHERE else address


def _made(folder: str) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as failure:
        raise StorageError(f"cannot make {folder} - {failure.strerror}") from failure
    return folder


@contextmanager
def _naming_flag(flag: str) -> Iterator[None]:
    """A port that is taken can be exchanged for another."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; {flag} sets another") from error
