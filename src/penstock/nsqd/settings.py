"""Settings of nsqd's components, made from its options."""

import ssl

from penstock.broker.settings import BrokerSettings
from penstock.broker.subscriber import Location
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.process import open_files_limit
from penstock.net.http_client.client import HttpClient
from penstock.net.tls import ReloadableContext, client_context
from penstock.nsqd.heartbeat import Timeouts
from penstock.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions
from penstock.nsqd.statsd import StatsdSettings
from penstock.protocol.events import Limits
from penstock.protocol.identify import ServerOffer
from penstock.storage import LogSettings

__all__ = [
    "broker_settings",
    "http_client",
    "limits",
    "log_settings",
    "lookupd_tls",
    "offer",
    "statsd_settings",
    "timeouts",
]


# A quarter of the open files is for logs, the rest for connections. More than this maximum only
# helps with as many busy topics.
_LOG_FILES_MAX = 16_384


def log_settings(options: NsqdOptions) -> LogSettings:
    return LogSettings(
        open_files_max=min(open_files_limit() // 4, _LOG_FILES_MAX),
        max_bytes_per_file=options.max_bytes_per_file,
        retention_time_ns=options.retention_time_ns or None,
        retention_bytes=options.retention_bytes or None,
    )


def broker_settings(options: NsqdOptions, node_id: int) -> BrokerSettings:
    return BrokerSettings(
        node_id=node_id,
        mem_queue_size=options.mem_queue_size,
        max_msg_timeout_ns=options.max_msg_timeout_ns,
        max_channel_consumers=options.max_channel_consumers,
        max_topics=options.max_topics,
        max_channels_per_topic=options.max_channels_per_topic,
        requeue_on_disconnect=options.requeue_on_disconnect,
        location=Location(options.topology_zone, options.topology_region)
        if TOPOLOGY_AWARE_CONSUMPTION in options.enable_experiment
        else None,
        latency_window_ns=options.e2e_processing_latency_window_time_ns
        if options.e2e_processing_latency_percentiles
        else 0,
    )


def limits(options: NsqdOptions) -> Limits:
    return Limits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_req_timeout_ms=options.max_req_timeout_ns // MILLISECOND_NS,
        max_defer_timeout_ms=(options.max_defer_timeout_ns or options.max_req_timeout_ns)
        // MILLISECOND_NS,
    )


def statsd_settings(options: NsqdOptions, prefix: str) -> StatsdSettings:
    return StatsdSettings(
        address=options.statsd_address,
        prefix=prefix,
        interval_seconds=max(options.statsd_interval_ns, MILLISECOND_NS) / SECOND_NS,
        packet_bytes_max=options.statsd_udp_packet_size,
        with_memory=options.statsd_mem_stats,
        with_ephemeral=not options.statsd_exclude_ephemeral,
        quantiles=options.e2e_processing_latency_percentiles,
    )


def offer(options: NsqdOptions) -> ServerOffer:
    return ServerOffer(
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=options.msg_timeout_ns // MILLISECOND_NS,
        max_msg_timeout_ms=options.max_msg_timeout_ns // MILLISECOND_NS,
        max_heartbeat_interval_ms=options.max_heartbeat_interval_ns // MILLISECOND_NS,
        max_output_buffer_size=options.max_output_buffer_size,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // MILLISECOND_NS,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ns // MILLISECOND_NS,
        tls=bool(options.tls_cert),
        snappy=options.snappy,
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


def lookupd_tls(options: NsqdOptions) -> ssl.SSLContext | None:
    """TLS context for nsqlookupd; None for plaintext. Raises ConfigError."""
    if not options.lookupd_tls:
        return None
    return client_context(
        root_ca=options.lookupd_tls_root_ca_file, cert=options.tls_cert, key=options.tls_key
    )


def etcd_tls(options: NsqdOptions) -> ssl.SSLContext | None:
    """TLS context for etcd; None if no URL needs it. Raises ConfigError."""
    if not any("https://" in each for each in options.etcd_addresses):
        return None
    return client_context(
        root_ca=options.etcd_tls_root_ca_file, cert=options.tls_cert, key=options.tls_key
    )


def cluster_tls(options: NsqdOptions) -> ReloadableContext | None:
    """TLS context for connections to the leader; None for plaintext. Raises ConfigError."""
    if not options.cluster_tls:
        return None
    return ReloadableContext(
        lambda: client_context(
            root_ca=options.tls_root_ca_file, cert=options.tls_cert, key=options.tls_key
        )
    )


def http_client(options: NsqdOptions, tls: ssl.SSLContext | None) -> HttpClient:
    """The client for requests to nsqlookupd."""
    return HttpClient(
        connect_timeout_seconds=options.http_client_connect_timeout_ns / SECOND_NS,
        request_timeout_seconds=options.http_client_request_timeout_ns / SECOND_NS,
        ssl_context=tls,
    )


def timeouts(options: NsqdOptions) -> Timeouts:
    return Timeouts(
        greeting_seconds=options.greeting_timeout_ns / SECOND_NS,
        command_seconds=options.command_timeout_ns / SECOND_NS,
    )
