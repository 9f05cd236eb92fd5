"""The nsqlookupd process: start, serve, stop.

All state is in memory: every nsqd registers again with an nsqlookupd that has restarted.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

import uvloop

from penstock import NSQ_VERSION
from penstock.common.bug_reports import BugReports
from penstock.common.clock import SECOND_NS, Clock, SystemClock
from penstock.common.errors import TlsError
from penstock.common.logs import Logger
from penstock.common.options import version_line
from penstock.common.process import (
    freeze_gc,
    ignore_signals,
    raise_open_files_limit,
    reload_on_hangup,
    stop_on_signals,
)
from penstock.net.connection_limits import ConnectionLimits
from penstock.net.http_server import HttpServer, Router, to_json
from penstock.net.listener import Listener, listen
from penstock.net.tls import configured_server_context, wrap_in_tls
from penstock.nsqlookupd.http import LookupdHttpApi, LookupdHttpServices
from penstock.nsqlookupd.long_poll import LongPolls
from penstock.nsqlookupd.metrics import LookupdMetrics
from penstock.nsqlookupd.options import NsqlookupdOptions
from penstock.nsqlookupd.registry import Registry
from penstock.nsqlookupd.tcp import LookupdTcpServices, NsqdConnection

__all__ = ["Nsqlookupd", "run"]

# Timeout of a clean stop for clients to read their responses.
STOP_SECONDS = 1.0


def run(options: NsqlookupdOptions, log: Logger) -> int:
    """Runs nsqlookupd until a signal stops it; returns the exit code."""
    raise_open_files_limit()
    return uvloop.run(_serve(options, log))


async def _serve(options: NsqlookupdOptions, log: Logger) -> int:
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    BugReports(log).handle_loop_exceptions(asyncio.get_running_loop())
    nsqlookupd = Nsqlookupd(options, log)
    try:
        await nsqlookupd.start()
        freeze_gc()
        await stop.wait()
    finally:
        await nsqlookupd.stop()
        ignore_signals()
    return 0


class Nsqlookupd:
    """One nsqlookupd; also the `RegistryListener` of its registry."""

    def __init__(self, options: NsqlookupdOptions, log: Logger, clock: Clock | None = None) -> None:
        self.options = options
        self.log = log
        self.clock = clock or SystemClock()
        self.tcp: Listener | None = None
        self.http: Listener | None = None
        self._tls = configured_server_context(
            cert=options.tls_cert,
            key=options.tls_key,
            root_ca=options.tls_root_ca_file,
            client_auth_policy=options.tls_client_auth_policy,
        )
        self._loop = asyncio.get_running_loop()
        self._advance_timer: asyncio.TimerHandle | None = None
        self._long_polls = LongPolls(limit=options.max_waiting_lookups)
        self.registry = Registry(
            self.clock,
            self,
            inactive_producer_timeout_ns=options.inactive_producer_timeout_ns,
            tombstone_lifetime_ns=options.tombstone_lifetime_ns,
            max_topics=options.max_topics,
            max_channels_per_topic=options.max_channels_per_topic,
        )
        self._tcp_services = LookupdTcpServices(
            registry=self.registry,
            log=log,
            connection_limits=ConnectionLimits(
                total_max=options.max_connections,
                per_address_max=options.max_connections_per_address,
            ),
            greeting_seconds=options.greeting_timeout_ns / SECOND_NS,
            command_seconds=options.command_timeout_ns / SECOND_NS,
        )
        self._http_server = self._new_http_server()
        log.info("%s", version_line("nsqlookupd"))

    async def start(self) -> None:
        """Opens the sockets; HTTP first, because the response to IDENTIFY has its port."""
        options, server = self.options, self._http_server
        self.http = await listen(options.http_address, self._secured(server.new_connection))
        self.log.info("HTTP: listening on %s", self.http.address)
        self.tcp = await listen(options.tcp_address, self._secured(self._new_nsqd_connection))
        self.log.info("TCP: listening on %s", self.tcp.address)
        if self._tls is not None:
            reload_on_hangup({"certificates": self._tls.reload}, self.log)

    def _secured(
        self, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Wraps a protocol factory in TLS, if a certificate is configured."""
        if self._tls is None:
            return factory
        return wrap_in_tls(self._tls, factory, self._on_tls_failure)

    def _on_tls_failure(self, address: str, failure: TlsError) -> None:
        self.log.info("TLS: [%s] %s", address, failure)

    async def stop(self) -> None:
        """Stops accepting, responds to received requests, and closes all connections."""
        for listener in (self.tcp, self.http):
            if listener is not None:
                listener.close()
        self._long_polls.wake_all()
        for connection in self._tcp_services.connections:
            connection.close()
        await self._http_server.stop(STOP_SECONDS)
        if self._advance_timer is not None:
            self._advance_timer.cancel()
        self.log.info("NSQLOOKUPD: bye")

    # RegistryListener.

    def changed(self, topic: str) -> None:
        self._long_polls.notify(topic)

    def advance_at(self, now_ns: int) -> None:
        if self._advance_timer is not None:
            self._advance_timer.cancel()
        delay_ns = max(now_ns - self.clock.now_ns(), 0)
        self._advance_timer = self._loop.call_later(delay_ns / SECOND_NS, self._advance)

    def _advance(self) -> None:
        self._advance_timer = None
        self.registry.advance()
        next_ns = self.registry.next_deadline_ns
        if next_ns is not None and self._advance_timer is None:
            self.advance_at(next_ns)  # The timer was early.

    # Parts.

    def _new_http_server(self) -> HttpServer:
        services = self._tcp_services
        api = LookupdHttpApi(
            LookupdHttpServices(
                registry=self.registry,
                long_polls=self._long_polls,
                log=self.log,
                max_lookup_wait_ns=self.options.max_lookup_wait_ns,
            )
        )
        metrics = LookupdMetrics(
            registry=self.registry,
            connections=services.connections,
            long_polls=self._long_polls,
            tcp_refusals=services.refusals,
        )
        server = metrics.http = HttpServer(
            Router([*api.routes(), metrics.route()]),
            log=self.log,
            allowed_origins=self.options.http_allowed_origins,
        )
        return server

    def _new_nsqd_connection(self) -> NsqdConnection:
        return NsqdConnection(self._tcp_services, self._identify_response)

    def _identify_response(self, additional: Mapping[str, object]) -> bytes:
        """The response to IDENTIFY, with sorted keys."""
        fields = {
            "broadcast_address": self.options.broadcast_address,
            "hostname": os.uname().nodename,
            "http_port": self.http.port if self.http is not None else -1,
            "tcp_port": self.tcp.port if self.tcp is not None else -1,
            "version": NSQ_VERSION,
            **additional,
        }
        return to_json(dict(sorted(fields.items())))
