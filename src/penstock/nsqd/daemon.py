"""The nsqd process: opens the data path, starts the engine and the listeners, and stops them."""

import asyncio
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import uvloop

from penstock import NSQ_VERSION
from penstock.broker.engine import Engine
from penstock.broker.publishing import PublishConfirmation
from penstock.broker.replicated_topic import ReplicatedTopic
from penstock.broker.topic import Topic
from penstock.common.bug_reports import BugReports
from penstock.common.clock import SECOND_NS, Clock, SystemClock
from penstock.common.errors import DataPathError, StorageError, TlsError
from penstock.common.logs import Logger
from penstock.common.options import version_line
from penstock.common.process import (
    drain_on_sigterm,
    freeze_gc,
    ignore_signals,
    pause_gc,
    raise_open_files_limit,
    reload_on_hangup,
    stop_on_signals,
)
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.http_server import HttpServer
from penstock.net.listener import Listener, listen
from penstock.net.prometheus import Histogram
from penstock.net.tls import wrap_in_tls
from penstock.nsqd import metadata, settings
from penstock.nsqd.auth import Authenticator
from penstock.nsqd.drain import Drain
from penstock.nsqd.history_streams import HistoryStreams
from penstock.nsqd.http import NsqdHttpApi, NsqdHttpServices
from penstock.nsqd.http_tokens import HttpTokens
from penstock.nsqd.log_catalog import LogCatalog
from penstock.nsqd.lookup_peers import LookupPeers
from penstock.nsqd.metadata import MetadataWriter
from penstock.nsqd.metrics import SYNC_BOUNDS_SECONDS, MetricsSource
from penstock.nsqd.node_id import NodeId
from penstock.nsqd.options import NsqdOptions, TlsRequired, in_effect
from penstock.nsqd.process_metrics import ErrorCounters, GcPauses, LoopLag, memory_stats
from penstock.nsqd.replication_streams import FirstBytes
from penstock.nsqd.session import SessionServices
from penstock.nsqd.statsd import Statsd, statsd_prefix
from penstock.nsqd.tcp import Client, Clients, ClientServices
from penstock.nsqd.tls_config import TlsRequiredMiddleware, server_tls
from penstock.replication.status import ReplicationStatus
from penstock.storage import BackgroundRemover, DataPath, GroupCommit, RealFiles, StoreObserver
from penstock.storage.layout import IMPORTING_NAME

__all__ = ["Nsqd", "ReplicationHooks", "run"]

# Time that a clean stop waits for clients to read pending data.
STOP_SECONDS = 1.0


def run(
    options: NsqdOptions,
    log: Logger,
    *,
    new_loop: Callable[[], uvloop.Loop] = uvloop.new_event_loop,
    when_running: Callable[[], None] = lambda: None,
    when_serving: Callable[["Nsqd"], None] = lambda _: None,
    preferred_rank: int | None = None,
) -> int:
    """Runs nsqd until a signal stops it; returns the exit code.

    `when_running` is called once, when it starts to serve or to follow. `when_serving` is called
    when it starts to serve, which can happen several times with replication. `preferred_rank` is
    the place among the sorted members of a replicated node of the one that should lead.
    """
    raise_open_files_limit()
    if options.cluster:
        # Imported here, because it imports this module.
        from penstock.nsqd.replicated import serve_member  # noqa: PLC0415

        return uvloop.run(
            serve_member(options, log, when_running, when_serving, preferred_rank),
            loop_factory=new_loop,
        )
    return uvloop.run(_serve(options, log, when_running, when_serving), loop_factory=new_loop)


async def _serve(
    options: NsqdOptions,
    log: Logger,
    when_running: Callable[[], None],
    when_serving: Callable[["Nsqd"], None],
) -> int:
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    pause_gc()
    try:
        nsqd = Nsqd(options, log, stop=stop.set)
    except DataPathError as error:
        raise DataPathError(f"failed to instantiate nsqd - {error}") from error
    try:
        await nsqd.start()
        if options.sigterm == "drain":
            drain_on_sigterm(nsqd.drain.start, stop, log)
        freeze_gc()
        when_running()
        when_serving(nsqd)
        await stop.wait()
    finally:
        await nsqd.stop()
        ignore_signals()
    return 0


@dataclass(frozen=True, slots=True)
class ReplicationHooks:
    """The connections of a replicated data path's leader to nsqd."""

    epoch: int
    """Above 0, and above that of every earlier run."""
    may_lack_messages: bool
    """The data path may lack messages that were visible: their numbers are not used again."""
    observer: StoreObserver
    confirmation: PublishConfirmation
    when_replicated: Callable[[Callable[[StorageError | None], None]], None]
    """Calls a function when the followers have everything that was written so far."""
    new_stream: Callable[[], asyncio.Protocol]
    """Makes the protocol of a connection that a follower has opened."""
    on_metadata: Callable[[bytes], None]
    """Called with the new content of nsqd.dat."""
    status: Callable[[], ReplicationStatus]
    """What `/replication` shows."""


class Nsqd:
    """One nsqd."""

    def __init__(
        self,
        options: NsqdOptions,
        log: Logger,
        *,
        stop: Callable[[], None],
        clock: Clock | None = None,
        replication: ReplicationHooks | None = None,
    ) -> None:
        """Opens the data path and recovers its topics. Raises penstock.common.errors.Error.

        `stop` is called when nsqd is drained, and requests a clean stop. `replication` is None if
        the data path is not replicated.
        """
        self.options = options = in_effect(options)
        self.log = log
        self._bugs = BugReports(log)
        self.report_bug = self._bugs.report
        self.tls = server_tls(options)
        token_file = options.http_auth_token_file
        self._tokens = HttpTokens(token_file, log) if token_file else None
        self.clock = clock or SystemClock()
        self.started_at_ns = self.clock.wall_ns()
        self.clients = Clients()
        self.error_counters = ErrorCounters()
        self.unresponsive_shards = 0
        """With `--shards`: the number last sent by the supervisor."""
        self._connection_limits = ConnectionLimits(
            total_max=options.max_connections, per_address_max=options.max_connections_per_address
        )
        self.tcp: Listener | None = None
        self.http: Listener | None = None
        self.https: Listener | None = None
        self._http_server: HttpServer | None = None
        self._statsd: Statsd | None = None
        self._gc_pauses = GcPauses()
        self._history = HistoryStreams()
        self._loop_lag = LoopLag(self.clock)
        self._sync_seconds = Histogram(SYNC_BOUNDS_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._bugs.handle_loop_exceptions(self._loop)
        self._path = Path(options.data_path or os.getcwd())
        log.info("%s", version_line("nsqd"))
        remover = BackgroundRemover(RealFiles(), lambda failure: log.error("%s", failure))
        self._replication = replication
        self.data_path = DataPath.open(
            str(self._path),
            settings.log_settings(options),
            remover=remover,
            epoch=replication.epoch if replication else 0,
            may_lack_messages=replication is not None and replication.may_lack_messages,
            observer=replication.observer if replication else None,
        )
        self._node_id = NodeId(
            self.data_path, options.node_id, log, is_replicated=replication is not None
        )
        log.info("ID: %d", self._node_id.value)
        self._commit = GroupCommit(
            self._loop.call_soon_threadsafe,
            self._loop.call_later,
            # nsq compat: with 0, only --sync-timeout decides.
            sync_every=options.sync_every or sys.maxsize,
            observe_seconds=self._sync_seconds.observe,
            report_bug=self.report_bug,
        )
        self._metadata = MetadataWriter(
            self._path,
            self._render_metadata,
            log,
            self._loop,
            ThreadPoolExecutor(1, thread_name_prefix="metadata"),
        )
        lookupd_tls = settings.lookupd_tls(options)
        self._lookups = LookupPeers(
            self._identity,
            lambda: self.broker.topics,
            settings.http_client(options, lookupd_tls),
            log,
            check_node_id=self._node_id.check,
            tls=lookupd_tls,
        )
        self._engine = Engine(
            settings.broker_settings(options, self._node_id.value),
            self.data_path,
            self._loop,
            self.clock,
            sample=random.random,
            commit=self._commit,
            listener=self,
            log=log,
            report_bug=self.report_bug,
            housekeeping_seconds=options.sync_timeout_ns / SECOND_NS,
            confirmation=replication.confirmation if replication else None,
        )
        self.broker = self._engine.broker
        self._catalog = LogCatalog(self.broker)
        self._node_id.on_change = self._use_new_node_id
        for issue in self.broker.issues:
            log.warning("%s", issue)
        if (self._path / IMPORTING_NAME).exists():
            log.warning("an import was not finished: stop, and run 'penstock import' once more")
        metadata.restore(self._path, self.broker, log)
        self.drain = Drain(
            self.broker,
            self._on_drain,
            stop,
            timeout_seconds=options.drain_timeout_ns / SECOND_NS,
            log=log,
            report_bug=self.report_bug,
        )

    async def start(self) -> None:
        """Opens the sockets, and starts the timers."""
        self._metadata.write_and_wait()
        await self._serve_tcp()
        await self._serve_http()
        self._reload_on_hangup()
        self._lookups.connect(self.options.lookupd_tcp_addresses)
        if self.options.statsd_address and self.options.statsd_interval_ns:
            self._report_to_statsd()
        self._loop_lag.start()
        self._engine.start()

    async def stop(self) -> None:
        """Stops accepting, closes connections, stores everything. If a step fails, the failure is
        logged and the other steps still run."""
        for step in (
            self._stop_listening,
            self.broker.exit,
            self._lookups.close,
            self._stop_reporting,
            self._stop_http,
            self._engine.stop,
            self._metadata.close,
            self._commit.close,
            self._close_topics,
            partial(self.clients.close, STOP_SECONDS),
            self._close_data_path,
            self._gc_pauses.close,
        ):
            try:
                waiting = step()
                if waiting is not None:
                    await waiting
            except StorageError as failure:
                self.log.error("failed to store on exit - %s", failure)
            except Exception as bug:  # noqa: BLE001 (reported; the other steps are taken)
                self.report_bug("stopping", bug)
        self.log.flush_repeating(all_causes=True)
        self.log.info("NSQ: bye")

    def _on_drain(self) -> None:
        self._lookups.drain()
        self._catalog.end_waits()

    def _stop_listening(self) -> None:
        for listener in (self.tcp, self.http, self.https):
            if listener is not None:
                listener.close()

    async def _stop_reporting(self) -> None:
        self._history.end_following()
        self._catalog.close()
        self._loop_lag.stop()
        if self._statsd is not None:
            await self._statsd.stop()

    async def _stop_http(self) -> None:
        if self._http_server is not None:
            await self._http_server.stop(STOP_SECONDS)
        self._history.close()

    def _close_topics(self) -> None:
        self.log.info("NSQ: closing topics")
        for failure in self.broker.close():
            self.log.error("failed to store on exit - %s", failure)

    def _close_data_path(self) -> None:
        self.data_path.close()

    def release_confirmed(self, name: str) -> None:
        """Passes messages of a topic on to its channels, after its high watermark has moved."""
        topic = self.broker.topics.get(name)
        if isinstance(topic, ReplicatedTopic):
            topic.release_confirmed()
            self._engine.end_turn_soon()

    def _render_metadata(self) -> bytes:
        content = metadata.render(self.broker.topics.values())
        if self._replication is not None:
            self._replication.on_metadata(content)
        return content

    async def _serve_tcp(self) -> None:
        session = SessionServices(
            broker=self.broker,
            publisher=self._engine.publisher,
            clock=self.clock,
            log=self.log,
            offer=settings.offer(self.options),
            authenticator=Authenticator(self.options, self.clock, self.log),
        )
        services = ClientServices(
            session=session,
            limits=settings.limits(self.options),
            timeouts=settings.timeouts(self.options),
            clients=self.clients,
            connection_limits=self._connection_limits,
            error_counters=self.error_counters,
            tls=self.tls,
            tls_required=self.options.tls_required is not TlsRequired.NONE,
            report_bug=self.report_bug,
        )

        def new_client() -> asyncio.Protocol:
            return Client(services)

        factory = new_client
        if (replication := self._replication) is not None:
            tls_required = self.options.tls_required is not TlsRequired.NONE
            new_tls_stream = None
            if self.tls is not None:
                new_tls_stream = wrap_in_tls(
                    self.tls,
                    lambda: FirstBytes(new_client, replication.new_stream),
                    self._on_stream_tls_failure,
                )

            def factory() -> asyncio.Protocol:
                return FirstBytes(
                    new_client, replication.new_stream, new_tls_stream, tls_required=tls_required
                )

        self.tcp = await listen(self.options.tcp_address, factory, bare_name_is_path=True)
        self.log.info("TCP: listening on %s", self.tcp.address)

    async def _serve_http(self) -> None:
        services = NsqdHttpServices(
            broker=self.broker,
            clock=self.clock,
            log=self.log,
            limits=settings.limits(self.options),
            options=self.options,
            publisher=self._engine.publisher,
            clients=self.clients,
            gc_pauses=self._gc_pauses,
            metrics=self._metrics_source(),
            persist=self._persist,
            save_metadata_soon=self._metadata.write_soon,
            history=self._history,
            catalog=self._catalog,
            register_with=self._lookups.connect,
            drain=self.drain.start,
            started_at_ns=self.started_at_ns,
            replication_status=self._replication.status if self._replication else None,
        )
        tls_middleware = (
            TlsRequiredMiddleware() if self.options.tls_required is TlsRequired.ALL else None
        )
        middleware = [each for each in (tls_middleware, self._tokens) if each is not None]
        server = HttpServer(
            NsqdHttpApi(services).router(),
            log=self.log,
            middleware=middleware,
            connection_limits=self._connection_limits,
            allowed_origins=self.options.http_allowed_origins,
        )
        self._http_server = services.metrics.http_server = server
        if self.tls is not None and self.options.https_address:
            factory = wrap_in_tls(self.tls, server.new_connection, self._on_tls_failure)
            self.https = await listen(self.options.https_address, factory)
            self.log.info("HTTPS: listening on %s", self.https.address)
            if tls_middleware is not None:
                tls_middleware.https_port = self.https.port
        if self.options.http_address:
            self.http = await listen(
                self.options.http_address, server.new_connection, bare_name_is_path=True
            )
            self.log.info("HTTP: listening on %s", self.http.address)
            services.http_port = self.http.port
        if self.tcp is not None:
            services.tcp_port = self.tcp.port
        services.options = self._options_in_use()

    def _persist(self, topic: Topic | None, done: Callable[[StorageError | None], None]) -> None:
        """Calls `done` once nsqd.dat and the cursors of the topic's channels are fsynced and, with
        replication, the followers have them."""

        def stored(failure: StorageError | None) -> None:
            if failure is None and self._replication is not None:
                self._replication.when_replicated(done)
            else:
                done(failure)

        def metadata_written(failure: StorageError | None) -> None:
            if failure is not None or topic is None or topic.store is None or topic.closed:
                stored(failure)
            else:
                self._commit.request(topic.store.cursors, stored)

        self._metadata.write(metadata_written)

    def _options_in_use(self) -> NsqdOptions:
        """The options with the ports and the prefix in use. nsq compat: /config shows these."""
        tcp_port, http_port = self._broadcast_ports()
        return replace(
            self.options,
            broadcast_tcp_port=tcp_port,
            broadcast_http_port=http_port,
            statsd_prefix=self._statsd_prefix(),
        )

    def _broadcast_ports(self) -> tuple[int, int]:
        """Ports of TCP and HTTP: from the options, or those nsqd listens on; 0 for none."""
        options = self.options
        tcp_port = max(self.tcp.port if self.tcp else 0, 0)
        http_port = max(self.http.port if self.http else 0, 0)
        return options.broadcast_tcp_port or tcp_port, options.broadcast_http_port or http_port

    def _on_stream_tls_failure(self, address: str, failure: TlsError) -> None:
        self.error_counters.count("tls")
        self.log.warning("REPLICATION: [%s] %s", address, failure)

    def _on_tls_failure(self, address: str, failure: TlsError) -> None:
        self.error_counters.count("tls")
        self.log.info("HTTPS: [%s] %s", address, failure)

    def reloads(self) -> dict[str, Callable[[], None]]:
        """Functions that read files again at SIGHUP, by the name for the log. Each raises
        ConfigError if its files are not valid."""
        parts = {"certificates": self.tls, "tokens": self._tokens}
        return {what: part.reload for what, part in parts.items() if part is not None}

    def _reload_on_hangup(self) -> None:
        reloads = self.reloads()
        if reloads:
            reload_on_hangup(reloads, self.log)

    def _report_to_statsd(self) -> None:
        self._statsd = Statsd(
            settings.statsd_settings(self.options, self._statsd_prefix()),
            self.broker.topics,
            partial(memory_stats, self._gc_pauses),
            self.log,
        )
        self._statsd.start()

    def _statsd_prefix(self) -> str:
        options = self.options
        _, http_port = self._broadcast_ports()
        return statsd_prefix(options.statsd_prefix, options.broadcast_address, http_port)

    def _metrics_source(self) -> MetricsSource:
        return MetricsSource(
            broker=self.broker,
            clients=self.clients,
            gc_pauses=self._gc_pauses,
            refusals=self.error_counters,
            bugs=self._bugs,
            lookupds=self._lookups.connected,
            loop_lag=self._loop_lag.histogram,
            sync_seconds=self._sync_seconds,
            unresponsive_shards=lambda: self.unresponsive_shards,
            quantiles=self.options.e2e_processing_latency_percentiles,
            started_at_ns=self.started_at_ns,
            replication=self._replication.status if self._replication else None,
        )

    # The engine's topology listener.

    def topology_changed(self, topic: Topic, *, persistent: bool) -> None:
        if persistent:
            self._metadata.write_soon()
        self._lookups.topology_changed(topic)

    def topic_created(self, topic: Topic) -> None:
        self._catalog.on_change()
        self._lookups.topic_created(topic)

    def _use_new_node_id(self) -> None:
        self.broker.set_node_id(self._node_id.value)
        self._lookups.register_again()

    def _identity(self) -> dict[str, object]:
        """The IDENTIFY body for nsqlookupd; its keys are in the order of Go's JSON encoder."""
        options = self.options
        tcp_port, http_port = self._broadcast_ports()
        return {
            "broadcast_address": options.broadcast_address,
            "hostname": os.uname().nodename,
            "http_port": http_port,
            "node_id": self._node_id.value,
            "tcp_port": tcp_port,
            "topology_region": options.topology_region,
            "topology_zone": options.topology_zone,
            "version": NSQ_VERSION,
            **self._replicated_identity(),
        }

    def _replicated_identity(self) -> dict[str, object]:
        """Tells nsqlookupd which nsqds lead the same node, and which of them leads it now."""
        if self._replication is None:
            return {}
        options = self.options
        return {
            "cluster": options.cluster,
            "node": options.node,
            "epoch": self._replication.epoch,
        }
