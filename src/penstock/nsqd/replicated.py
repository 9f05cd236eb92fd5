"""nsqd as a member of a replicated node: follows a leader, or leads.

While the member follows, the process answers a few HTTP requests about itself, and does not listen
on its TCP port. When it leads, it runs an `Nsqd` on the data path; when it stops leading, it closes
that `Nsqd` and follows again, in the same process.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Coroutine
from itertools import chain
from pathlib import Path

import msgspec

from penstock import NSQ_VERSION
from penstock.common.clock import SECOND_NS, SystemClock
from penstock.common.errors import Error, InternalError, ReplicationError, StorageError
from penstock.common.logs import Logger
from penstock.common.options import version_line
from penstock.common.process import (
    freeze_gc,
    ignore_signals,
    pause_gc,
    reload_on_hangup,
    stop_on_signals,
)
from penstock.net.http_server import (
    PLAIN_TEXT,
    HttpError,
    HttpServer,
    Request,
    Route,
    Router,
    StreamingResponse,
    error_response,
)
from penstock.net.listener import Listener, listen
from penstock.net.prometheus import exposition
from penstock.nsqd import settings
from penstock.nsqd.daemon import Nsqd, ReplicationHooks
from penstock.nsqd.following import Following
from penstock.nsqd.http_tokens import HttpTokens
from penstock.nsqd.metrics import process_metrics
from penstock.nsqd.options import NsqdOptions
from penstock.nsqd.process_metrics import GcPauses
from penstock.nsqd.replication_metrics import replication_metrics
from penstock.nsqd.replication_status import Takeovers, collect_status, min_in_sync_of
from penstock.nsqd.replication_streams import FollowerStream
from penstock.nsqd.tls_config import server_tls
from penstock.replication.coordination import ClusterView
from penstock.replication.copied_data_path import CopiedDataPath
from penstock.replication.etcd import EtcdCoordinator, read_cluster
from penstock.replication.etcd_client import EtcdConfig
from penstock.replication.leader import STREAM_VERSION, Leader, LeaderSettings
from penstock.replication.member import Member, MemberIdentity, Role
from penstock.replication.member_file import MemberFile, read_member_file, write_member_file
from penstock.replication.node_record import MemberAddress
from penstock.replication.status import ReplicationStatus
from penstock.replication.stream import FormatSettings, Hello
from penstock.storage import RealFiles
from penstock.storage.data_dir import FormatFile, verify_data_path
from penstock.storage.layout import TOPICS_NAME, Issue
from penstock.storage.topic_storage import LastShutdown

__all__ = ["ReplicatedNsqd", "serve_member"]

TICK_SECONDS = 0.25

# Time that a clean stop waits for followers to receive what was written last.
_SEND_REST_SECONDS = 1.0

# Time after a start by which etcd must have answered.
_ETCD_SECONDS = 10.0

# Minimum time between two openings of a damaged data path.
_REOPEN_SECONDS = 60.0

# A leader that is silent for this many times the replica timeout is connected to again.
_SILENCE_FACTOR = 2


async def serve_member(
    options: NsqdOptions,
    log: Logger,
    when_running: Callable[[], None],
    when_serving: Callable[[Nsqd], None],
    preferred_rank: int | None,
) -> int:
    """Runs a member until a signal stops it; returns the exit code.

    `preferred_rank` is the position of the preferred leader among the members, sorted by name;
    None if no leader is preferred."""
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    pause_gc()
    log.info("%s", version_line("nsqd"))
    member = ReplicatedNsqd(options, log, stop.set, when_serving, preferred_rank)
    try:
        await member.start()
        when_running()
        await stop.wait()
    finally:
        await member.stop()
        ignore_signals()
    if member.error is not None:
        raise member.error
    return 0


class ReplicatedNsqd:
    """One member of a replicated node: runs nsqd while it leads. Implements `MemberActions`."""

    def __init__(
        self,
        options: NsqdOptions,
        log: Logger,
        stop: Callable[[], None],
        when_serving: Callable[[Nsqd], None] = lambda _: None,
        preferred_rank: int | None = None,
    ) -> None:
        """`stop` requests a clean stop of the process. Raises penstock.common.errors.Error."""
        self.error: Error | None = None
        """Why the member cannot take part."""
        self.nsqd: Nsqd | None = None
        """While it leads."""
        self._options = options
        self._log = log
        self._stop = stop
        self._when_serving = when_serving
        self._preferred_rank = preferred_rank
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._files = RealFiles()
        self._path = str(Path(options.data_path or os.getcwd()))
        self._copy: CopiedDataPath | None = None
        """Opened before the member announces itself; `Following` takes it over."""
        self._identity = self._load_identity()
        self._node_uuid = self._identity.node_uuid
        self._token = _read_secret(options.cluster_token_file)
        self._tls = settings.cluster_tls(options)
        token_file = options.http_auth_token_file
        self._tokens = HttpTokens(token_file, log) if token_file else None
        """Of a follower's HTTP requests; the leader reads the file itself."""
        self._etcd = EtcdConfig(
            _etcd_urls(options),
            options.etcd_user,
            _read_secret(options.etcd_password_file),
            settings.etcd_tls(options),
        )
        self._coordinator = EtcdCoordinator(
            self._etcd,
            cluster=options.cluster,
            node=options.node,
            member=self._identity.member,
            log=log,
            lease_seconds=max(options.leader_timeout_ns // SECOND_NS, 1),
        )
        self._member = Member(
            self._identity,
            self._coordinator,
            self,
            self._clock,
            log,
            lambda: secrets.token_hex(16),
        )
        copy, self._copy = self._copy, None
        self._following = self._new_following(copy)
        self._leader: Leader | None = None
        self._http: Listener | None = None
        self._http_server: HttpServer | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_sending_soon = False
        self._is_stopping = False
        """Whether the process ends: a change of the role would not be completed."""
        self._etcd_deadline = self._loop.time() + _ETCD_SECONDS
        self._takeovers = Takeovers()
        self.started_at_ns = self._clock.wall_ns()
        self.gc_pauses = GcPauses()
        self._changing_role = asyncio.Lock()
        self._reopen_not_before = 0.0

    async def start(self) -> None:
        """Starts to watch etcd, and to answer HTTP requests."""
        self._reload_on_hangup()
        await self._serve_http()
        self._member.start()
        self._tick()

    async def stop(self) -> None:
        """Stops leading or following, and removes the member's entry from etcd."""
        self._is_stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        for task in tuple(self._tasks):
            await asyncio.wait([task])
        if self.nsqd is not None:
            await self._stop_nsqd(self.nsqd)
        await self._stop_http()
        await self._coordinator.close()
        self.gc_pauses.close()
        try:
            await self._following.close()
        except Error as error:
            self._log.error("failed to store on exit - %s", error)

    # Decisions of the member

    def join(self, node_uuid: str) -> None:
        self._node_uuid = node_uuid
        self._write_member_file(self._identity.incarnation)

    def lead(self, view: ClusterView) -> None:
        if self._is_stopping:
            return
        self._takeovers = Takeovers(self._takeovers.total + 1, self._clock.wall_ns())
        self._spawn(self._start_leading(view))

    def leader_view(self, view: ClusterView) -> None:
        if self._leader is not None:
            self._leader.on_view(view)

    def stop_leading(self) -> None:
        if self._leader is not None:
            self._leader.stop()
        if not self._is_stopping:
            self._spawn(self._stop_leading())

    def follow(self, leader: MemberAddress, epoch: int) -> None:
        if not self._is_stopping:
            self._following.follow(leader, epoch)

    def stop_following(self) -> None:
        self._following.stop()

    def fail(self, error: ReplicationError) -> None:
        self._fail(error)

    # Leading

    async def _start_leading(self, view: ClusterView) -> None:
        async with self._changing_role:
            try:
                await self._following.close()
                await self._stop_http()
                if self._member.role is Role.LEADING:
                    await self._run_nsqd(view)
            except Error as error:
                self._fail(error)

    async def _run_nsqd(self, view: ClusterView) -> None:
        leader = self._leader = self._new_leader(view)
        nsqd = Nsqd(
            self._options,
            self._log,
            stop=self._stop,
            replication=ReplicationHooks(
                epoch=leader.settings.epoch,
                may_lack_messages=leader.record.is_forced,
                observer=leader,
                confirmation=leader,
                when_replicated=leader.when_replicated,
                new_stream=lambda: FollowerStream(leader, self._log),
                on_metadata=leader.metadata_written,
                status=self.status,
            ),
        )
        self.nsqd = nsqd
        if any(issue.is_damage for issue in nsqd.broker.issues):
            self._on_damage_of_leader("")
        if self._member.role is not Role.LEADING:
            return
        leader.start()
        await nsqd.start()
        self._reload_on_hangup()
        if self._member.view is not None and self._member.role is Role.LEADING:
            leader.on_view(self._member.view)
        freeze_gc()
        self._when_serving(nsqd)

    def _new_leader(self, view: ClusterView) -> Leader:
        assert view.record is not None
        options = self._options
        leader_settings = LeaderSettings(
            cluster=options.cluster,
            node=options.node,
            member=self._identity.member,
            epoch=view.record.epoch,
            token=self._token,
            must_sync=options.sync_every == 1,
            min_in_sync=min_in_sync_of(options),
            timeout_ns=options.replica_timeout_ns,
            replicas=options.replicas,
            preferred_rank=self._preferred_rank,
        )
        return Leader(
            leader_settings,
            view,
            self._clock,
            self._log,
            write=self._coordinator.write,
            format_settings=self._format_settings,
            on_visible=self._on_visible,
            send_soon=self._send_soon,
            on_damage=self._on_damage_of_leader,
        )

    def _format_settings(self) -> FormatSettings:
        assert self.nsqd is not None
        return FormatSettings(self.nsqd.data_path.node_id, self.nsqd.data_path.reserved_below)

    def _on_visible(self, topic: str) -> None:
        if self.nsqd is not None:
            self.nsqd.release_confirmed(topic)

    def _send_soon(self) -> None:
        if not self._is_sending_soon:
            self._is_sending_soon = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_sending_soon = False
        if self._leader is not None:
            self._leader.send()

    async def _stop_leading(self) -> None:
        async with self._changing_role:
            if self.nsqd is not None:
                await self._stop_nsqd(self.nsqd)
            self._following = self._new_following()
            self._reload_on_hangup()
            with contextlib.suppress(Error):
                await self._serve_http()
        self._member.stopped_leading()

    async def _stop_nsqd(self, nsqd: Nsqd) -> None:
        await self._send_rest(nsqd)
        if self._leader is not None:
            self._leader.stop()
        await nsqd.stop()
        self.nsqd = self._leader = None

    async def _send_rest(self, nsqd: Nsqd) -> None:
        """Save the progress of the channels, and wait until the followers have it, before this
        member stops leading."""
        leader = self._leader
        if leader is None or leader.is_stopped:
            return
        nsqd.broker.save_progress()
        replicated = self._loop.create_future()

        def on_replicated(_: StorageError | None) -> None:
            if not replicated.done():
                replicated.set_result(None)

        leader.when_replicated(on_replicated)
        await asyncio.wait([replicated], timeout=_SEND_REST_SECONDS)

    # Following

    def _new_following(self, copy: CopiedDataPath | None = None) -> Following:
        options = self._options
        return Following(
            self._path,
            self._log,
            self._hello,
            copy=copy,
            on_damage=self._renounce,
            sync_seconds=options.sync_timeout_ns / SECOND_NS,
            silence_seconds=_SILENCE_FACTOR * options.replica_timeout_ns / SECOND_NS,
            tls=self._tls,
        )

    def _hello(self, epoch: int) -> Hello:
        identity = self._identity
        return Hello(
            identity.cluster,
            identity.node,
            self._node_uuid,
            identity.member,
            identity.incarnation,
            epoch,
            self._token,
            STREAM_VERSION,
        )

    # The data path

    def _load_identity(self) -> MemberIdentity:
        """Raises Error if the data path belongs to another member, or is not a data path."""
        options, files = self._options, self._files
        name = options.member or os.uname().nodename
        format_file = verify_data_path(self._path, files)
        stored = read_member_file(files, self._path)
        wanted = options.cluster, options.node, name
        if stored is not None and (stored.cluster, stored.node, stored.member) != wanted:
            raise ReplicationError(
                f"data path {self._path} belongs to member {stored.member} of node {stored.node} "
                f"of cluster {stored.cluster}"
            )
        if stored is not None and format_file is not None:
            stored = self._renew_incarnation(stored, format_file)
        incarnation = stored.incarnation if stored is not None else secrets.token_hex(8)
        topics = Path(self._path, TOPICS_NAME)
        address = MemberAddress(
            member=name,
            incarnation=incarnation,
            session=secrets.token_hex(8),
            broadcast_address=options.broadcast_address,
            tcp_port=options.broadcast_tcp_port or _port_of(options.tcp_address),
            http_port=options.broadcast_http_port or _port_of(options.http_address),
            version=NSQ_VERSION,
        )
        return MemberIdentity(
            cluster=options.cluster,
            node=options.node,
            member=name,
            incarnation=incarnation,
            address=address,
            node_uuid=stored.node_uuid if stored is not None else "",
            has_data=topics.is_dir() and any(topics.iterdir()),
            lease_ns=options.leader_timeout_ns,
        )

    def _renew_incarnation(self, stored: MemberFile, format_file: FormatFile) -> MemberFile:
        """Open the copy. If it may lack acknowledged messages, because it is damaged or because the
        machine went down before an fsync, the member takes a new incarnation: it is then not in
        sync, and cannot lead, until it has fetched the missing data from the leader."""
        renewed = msgspec.structs.replace(stored, incarnation=secrets.token_hex(8))
        current = stored
        shutdown = format_file.last_shutdown(self._files.boot_id())

        def renew(reason: str) -> None:
            nonlocal current
            self._log.warning("REPLICATION: %s; this member has to catch up", reason)
            current = renewed
            write_member_file(self._files, self._path, current)

        def report(issue: Issue) -> None:
            self._log.warning("%s", issue)
            if issue.is_damage and current is stored:
                # Now, because the damage is removed next.
                renew("the copy is damaged")

        if shutdown is LastShutdown.POWER_LOSS and self._options.sync_every != 1:
            renew("the machine went down")
        self._copy = CopiedDataPath.open(self._path, self._files, report)
        return current

    def _write_member_file(self, incarnation: str) -> None:
        identity = self._identity
        content = MemberFile(
            cluster=identity.cluster,
            node=identity.node,
            node_uuid=self._node_uuid,
            member=identity.member,
            incarnation=incarnation,
        )
        try:
            write_member_file(self._files, self._path, content)
        except OSError as error:
            self._fail(ReplicationError(f"cannot write to {self._path}: {error.strerror}"))

    def _on_damage_of_leader(self, topic: str) -> None:
        """If another member in sync is running, it takes over, and this member then fetches the
        damaged data from it. Otherwise the damage is skipped, as without replication, and the data
        path is opened again soon. Opening moves the damaged bytes aside, so that followers can copy
        the rest."""
        if self._member.role is not Role.LEADING:
            return
        if self._member.has_successor():
            self._log.error("REPLICATION: damaged data; another member takes over")
            self._renounce()
        elif self.nsqd is not None and topic in self.nsqd.broker.topics:
            store = self.nsqd.broker.topics[topic].store
            if store is not None:
                self._log.error("REPLICATION: damaged data, and no other member in sync has it")
                store.log.skip_damage()
                if self._loop.time() >= self._reopen_not_before:
                    self._reopen_not_before = self._loop.time() + _REOPEN_SECONDS
                    self._member.lead_again()

    def _renounce(self) -> None:
        incarnation = secrets.token_hex(8)
        self._identity = self._identity._replace(incarnation=incarnation)
        self._write_member_file(incarnation)
        self._member.renounce(incarnation)

    # HTTP of a follower

    async def _serve_http(self) -> None:
        if not self._options.http_address:
            return
        router = Router(
            [
                Route("GET", "/ping", self._ping, response_format=PLAIN_TEXT),
                Route("GET", "/ready", self._ready, response_format=PLAIN_TEXT),
                Route("GET", "/replication", lambda _: msgspec.to_builtins(self.status())),
                Route("GET", "/stats", self._stats),
                Route("GET", "/metrics", self._metrics, is_logged=False),
            ],
            # Not 404: these requests exist, and the member may lead later.
            not_found=error_response(503, "NOT_LEADING"),
        )
        middleware = [self._tokens] if self._tokens is not None else []
        self._http_server = HttpServer(router, log=self._log, middleware=middleware)
        self._http = await listen(
            self._options.http_address, self._http_server.new_connection, bare_name_is_path=True
        )
        self._log.info("HTTP: listening on %s", self._http.address)

    async def _stop_http(self) -> None:
        if self._http is not None and self._http_server is not None:
            self._http.close()
            await self._http_server.stop(1.0)
            self._http = self._http_server = None

    def _ping(self, _: Request) -> object:
        return "OK"

    def _ready(self, _: Request) -> object:
        raise HttpError(503, "NOT_LEADING")

    def _stats(self, request: Request) -> object:
        stats = {
            "version": NSQ_VERSION,
            "health": "OK",
            "start_time": self.started_at_ns // SECOND_NS,
            "role": self._member.role.name.lower(),
            "topics": [],
            "producers": [],
        }
        if request.args.get("format") == "json":
            return stats
        return f"{version_line('nsqd')}\n\nHealth: OK\n\nRole: {stats['role']}\n"

    def _metrics(self, _: Request) -> StreamingResponse:
        process = process_metrics(self)
        return exposition(chain(process, replication_metrics(self.status())))

    def status(self) -> ReplicationStatus:
        """Content of the response to `GET /replication`."""
        return collect_status(
            self._options,
            self._identity.member,
            self._member,
            leader=self._leader if self.nsqd is not None else None,
            following=self._following,
            takeovers=self._takeovers,
            clock=self._clock,
        )

    # Small things

    def _reload_on_hangup(self) -> None:
        """Make SIGHUP read certificates and tokens again: those in use, and those that are needed
        when the role changes."""
        reloads = self.nsqd.reloads() if self.nsqd is not None else {}
        if self._options.tls_cert:
            reloads.setdefault("certificates", self._check_certificates)
        if self._tls is not None:
            reloads["certificates for the leader"] = self._tls.reload
        if self._tokens is not None:
            reloads["tokens of a follower"] = self._tokens.reload
        if reloads:
            reload_on_hangup(reloads, self._log)

    def _check_certificates(self) -> None:
        """Check the certificates on SIGHUP. A follower does not use them, but reads them when it
        becomes leader. Raises ConfigError."""
        server_tls(self._options)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self._member.tick()
        if self._member.view is None and self._loop.time() >= self._etcd_deadline:
            self._etcd_deadline = float("inf")
            self._spawn(self._check_etcd())
        if self._leader is not None and self.nsqd is not None:
            self._leader.tick()

    async def _check_etcd(self) -> None:
        """To be called if etcd has not answered since the start: fail with the reason."""
        try:
            await read_cluster(self._etcd, self._options.cluster)
        except ReplicationError as error:
            if self._member.view is None:
                self._fail(error)

    def _fail(self, error: Error) -> None:
        if self.error is None:
            self.error = error
            self._stop()

    def _spawn(self, coroutine: "Coroutine[None, None, None]") -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if isinstance(bug, Exception):
            # The member would neither lead nor follow: another one can, if this process ends.
            self._log.exception("internal error while changing the role - %r", bug, error=bug)
            self._fail(InternalError("changing the role", bug))


def _read_secret(path: str) -> str:
    """The content of a file without spaces around it; empty if there is no path."""
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ReplicationError(f"cannot read {path}: {error.strerror}") from error


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2]) if address else 0


def _etcd_urls(options: NsqdOptions) -> tuple[str, ...]:
    return tuple(url for each in options.etcd_addresses for url in each.split(",") if url)
