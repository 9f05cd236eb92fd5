"""The nsqadmin process: start, serve, stop.

nsqadmin stores nothing except the metrics of the last hour, in memory. So any number of nsqadmins
can serve the same cluster.
"""

import asyncio
import logging
from typing import cast

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.admin_api.cluster import Cluster
from penstock.common.bug_reports import BugReports
from penstock.common.clock import SECOND_NS, SystemClock
from penstock.common.errors import ConfigError
from penstock.common.logs import Logger
from penstock.common.options import version_line
from penstock.common.process import (
    freeze_gc,
    ignore_signals,
    raise_open_files_limit,
    reload_on_hangup,
    stop_on_signals,
)
from penstock.net.http_client.client import HttpClient
from penstock.net.listener import Listener, listen
from penstock.net.tls import client_context
from penstock.nsqadmin.access import AllowedHosts
from penstock.nsqadmin.app import Services, make_app
from penstock.nsqadmin.login import Login
from penstock.nsqadmin.notifications import Notifier
from penstock.nsqadmin.options import NsqadminOptions, normalized
from penstock.nsqadmin.watcher import Watcher
from penstock.tools.display import format_count

__all__ = ["LimitedHttpProtocol", "Nsqadmin", "run"]

# A clean stop waits this long for running requests.
STOP_SECONDS = 1.0

CONNECTIONS_MAX = 1000

# Time limits for receiving a request, and for the pause until the next one.
REQUEST_SECONDS_MAX = 30
IDLE_SECONDS = 60

HEADERS_BYTES_MAX = 64 * 1024

HEADERS_TOO_LARGE_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\n"
    b"\r\n"
    b"Request headers too large."
)


def run(options: NsqadminOptions, log: Logger) -> int:
    """Run nsqadmin until a signal stops it. Returns the exit code."""
    raise_open_files_limit()
    return uvloop.run(_serve(options, log))


async def _serve(options: NsqadminOptions, log: Logger) -> int:
    stop = asyncio.Event()
    stop_on_signals(stop, log)
    BugReports(log).handle_loop_exceptions(asyncio.get_running_loop())
    nsqadmin = Nsqadmin(options, log)
    try:
        await nsqadmin.start()
        nsqadmin.reload_on_hangup()
        freeze_gc()
        await stop.wait()
    finally:
        await nsqadmin.stop()
        ignore_signals()
    return 0


class Nsqadmin:
    """The nsqadmin server. Needs a running event loop."""

    def __init__(self, options: NsqadminOptions, log: Logger) -> None:
        """Raises ConfigError if an option is invalid."""
        self.options = options = normalized(options)
        self.log = log
        self.http: Listener | None = None
        clock = SystemClock()
        client = _http_client(options)
        self.cluster = Cluster(
            client,
            lookupds=options.lookupd_http_addresses,
            nsqds=options.nsqd_http_addresses,
            headers=_token_header(options.http_client_token_file),
        )
        self._login = Login(options.auth_token_file, clock) if options.auth_token_file else None
        self._allowed_hosts = AllowedHosts(options.allowed_hosts)
        self._notifier = Notifier(options.notification_http_endpoint, client, log)
        self.watcher = Watcher(
            self.cluster, log, interval_seconds=options.sample_interval_ns / SECOND_NS
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._server_state = ServerState()
        self._uvicorn_logs = _UvicornLogHandler(log)
        services = Services(
            options=options,
            cluster=self.cluster,
            notifier=self._notifier,
            watcher=self.watcher,
            login=self._login,
            allowed_hosts=self._allowed_hosts,
            log=log,
        )
        self._server_config = uvicorn.Config(
            make_app(services),
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_SECONDS,
        )
        log.info("%s", version_line("nsqadmin"))

    async def start(self) -> None:
        """Open the socket and start polling the cluster."""
        self._server_config.load()
        logging.getLogger("uvicorn").addHandler(self._uvicorn_logs)
        self.http = await listen(self.options.http_address, self._new_connection)
        self.log.info("HTTP: listening on %s", self.http.address)
        loop = asyncio.get_running_loop()
        work = (self._notifier.run(), self.watcher.run(), self._allowed_hosts.add_full_name())
        self._tasks += map(loop.create_task, work)

    def reload_on_hangup(self) -> None:
        """Read the token file again at each SIGHUP, if --auth-token-file is set."""
        if self._login is not None:
            reload_on_hangup({"tokens": self._login.reload}, self.log)

    async def stop(self) -> None:
        """Close the socket, finish running requests, send queued notifications."""
        if self.http is not None:
            self.http.close()
        await self._finish_requests()
        await self._notifier.flush()
        for task in (*self._server_state.tasks, *self._tasks):
            task.cancel()
        await asyncio.gather(*self._server_state.tasks, *self._tasks, return_exceptions=True)
        self.cluster.http.close()
        logging.getLogger("uvicorn").removeHandler(self._uvicorn_logs)
        self.log.info("NSQADMIN: bye")

    async def _finish_requests(self) -> None:
        """Wait for running requests, up to STOP_SECONDS, then abort the rest.

        Loops because connections that the kernel had already accepted can still appear.
        """
        state, loop = self._server_state, asyncio.get_running_loop()
        until = loop.time() + STOP_SECONDS
        while True:
            for connection in tuple(state.connections):
                connection.shutdown()
            if not state.tasks or loop.time() >= until:
                break
            left = until - loop.time()
            await asyncio.wait(state.tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if state.tasks:
            aborted = format_count(len(state.tasks), "request")
            self.log.warning("HTTP: %s aborted, not finished in time", aborted)
        for connection in tuple(state.connections):
            cast("LimitedHttpProtocol", connection).abort_unanswered()

    def _new_connection(self) -> "LimitedHttpProtocol":
        return LimitedHttpProtocol(
            self._server_config, self._server_state, request_seconds_max=REQUEST_SECONDS_MAX
        )


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes the connection if a request takes too long to arrive or its headers are too large."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, *, request_seconds_max: float
    ) -> None:
        super().__init__(config, server_state, {})
        self._request_seconds_max = request_seconds_max
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading_headers = False
        self._headers_bytes = 0
        self._is_rejected = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        was_reading_headers = self._is_reading_headers
        super().data_received(data)
        # The first read of the headers does not count: it may also contain a previous body.
        if was_reading_headers and self._is_reading_headers and not self.transport.is_closing():
            self._headers_bytes += len(data)
            if self._headers_bytes > HEADERS_BYTES_MAX:
                self._reject()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_reading_headers, self._headers_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._is_reading_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()

    # Called by the daemon.

    def abort_unanswered(self) -> None:
        """Close the connection now if its response is not complete."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()

    # Helpers.

    def _reject(self) -> None:
        """Send an error, then discard input until the peer closes or the timer ends.

        Closing at once would lose the response: the kernel resets a connection that is closed
        while it has unread input.
        """
        self._is_rejected = True
        self.transport.write(HEADERS_TOO_LARGE_RESPONSE)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._request_seconds_max, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _UvicornLogHandler(logging.Handler):
    """Forwards uvicorn's log records to nsqadmin's log."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        write = self._log.warning if record.levelno < logging.ERROR else self._log.error
        write("HTTP: %s", self.format(record))


def _http_client(options: NsqadminOptions) -> HttpClient:
    has_tls_options = (
        options.http_client_tls_insecure_skip_verify
        or options.http_client_tls_root_ca_file
        or options.http_client_tls_cert
    )
    context = client_context(
        root_ca=options.http_client_tls_root_ca_file,
        cert=options.http_client_tls_cert,
        key=options.http_client_tls_key,
        insecure_skip_verify=options.http_client_tls_insecure_skip_verify,
    )
    return HttpClient(
        connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
        request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
        ssl_context=context if has_tls_options else None,
        keep_alive=True,
    )


def _token_header(path: str) -> tuple[tuple[str, str], ...]:
    """Authorization header for nsqds; empty without a token file. Raises ConfigError."""
    if not path:
        return ()
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(4096).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--http-client-token-file: {error}") from error
    if not token or any(char.isspace() for char in token):
        raise ConfigError(
            f"--http-client-token-file: {path}: the file must contain exactly one token"
        )
    return (("Authorization", f"Bearer {token}"),)
