"""Options of nsqd. Flags, keys and defaults are NSQ's; the options at the end are not in NSQ.

`check` refuses invalid options, so that the daemon can rely on them.
"""

import os
from dataclasses import dataclass, replace
from enum import IntEnum

from penstock.common.addresses import has_port
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.daemon_options import (
    DaemonOptions,
    allowed_origins_option,
    check_allowed_origins,
    prefix_option,
)
from penstock.common.errors import ConfigError
from penstock.common.node_id import NODE_IDS
from penstock.common.option_types import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    OPTIONAL_INT,
    STRING,
    STRINGS,
    enum_type,
)
from penstock.common.options import check_values, option

__all__ = [
    "TOPOLOGY_AWARE_CONSUMPTION",
    "NsqdOptions",
    "TlsRequired",
    "TlsVersion",
    "check",
    "in_effect",
]


class TlsRequired(IntEnum):
    """Connections that must be encrypted; `/config` shows the numbers."""

    NONE = 0
    TCP_AND_HTTPS = 1  # all except plain HTTP
    ALL = 2


class TlsVersion(IntEnum):
    """TLS versions by their numbers on the wire, which `/config` shows, too."""

    TLS1_0 = 0x0301
    TLS1_1 = 0x0302
    TLS1_2 = 0x0303
    TLS1_3 = 0x0304


TLS_REQUIRED = enum_type(
    {
        "false": TlsRequired.NONE,
        "true": TlsRequired.ALL,
        "tcp-https": TlsRequired.TCP_AND_HTTPS,
        "0": TlsRequired.NONE,
        "f": TlsRequired.NONE,
        "1": TlsRequired.ALL,
        "t": TlsRequired.ALL,
    },
    is_switch=True,
)

TLS_VERSION = enum_type(
    {
        "tls1.0": TlsVersion.TLS1_0,
        "tls1.1": TlsVersion.TLS1_1,
        "tls1.2": TlsVersion.TLS1_2,
        "tls1.3": TlsVersion.TLS1_3,
        "": TlsVersion.TLS1_2,
    }
)

SHARDS_MAX = 64

TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"


def _hostname() -> str:
    return os.uname().nodename


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """The options of one nsqd."""

    log_prefix: str = prefix_option("[nsqd] ")

    node_id: int | None = option(
        None,
        OPTIONAL_INT,
        "node id, part of each message id; should be unique in the cluster",
        key="id",
        default_text="chosen at random, stored in -data-path",
        at_least=0,
        at_most=NODE_IDS - 1,
    )
    worker_id: bool = option(False, BOOL, "deprecated, no effect: use -node-id", key=None)
    tcp_address: str = option(
        "0.0.0.0:4150", STRING, "TCP address: address:port, or the path of a unix socket"
    )
    http_address: str = option(
        "0.0.0.0:4151",
        STRING,
        "HTTP address: address:port, or the path of a unix socket; empty for none",
    )
    https_address: str = option(
        "0.0.0.0:4152",
        STRING,
        "HTTPS address, used with -tls-cert and -tls-key: address:port; empty for none",
    )
    broadcast_address: str = option(
        _hostname, STRING, "address that nsqlookupd gives to clients", default_text="hostname"
    )
    broadcast_tcp_port: int = option(
        0,
        INT,
        "TCP port that nsqlookupd gives to clients; 0 for that of -tcp-address",
        at_least=0,
        at_most=65535,
    )
    broadcast_http_port: int = option(
        0,
        INT,
        "HTTP port that nsqlookupd gives to clients; 0 for that of -http-address",
        at_least=0,
        at_most=65535,
    )
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "nsqlookupd to register with, address:port",
        flag="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
    )
    topology_region: str = option("", STRING, "region of this node")
    topology_zone: str = option("", STRING, "zone of this node within its region")

    auth_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "auth server, address:port or URL",
        flag="auth-http-address",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = option(
        "get",
        STRING,
        "HTTP method of requests to auth servers: get or post",
        choices=("get", "post"),
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "timeout of connecting to an auth server or nsqlookupd",
        at_least=MILLISECOND_NS,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "timeout of a request to an auth server or nsqlookupd, including connecting",
        at_least=MILLISECOND_NS,
    )

    data_path: str = option(
        "", STRING, "directory in which messages are stored", default_text="working directory"
    )
    mem_queue_size: int = option(
        10_000,
        INT,
        "maximum messages that a channel holds in memory; the rest is read from disk",
        at_least=0,
    )
    max_bytes_per_file: int = option(
        104_857_600, INT, "size in bytes at which a topic's log starts a new file", at_least=1
    )
    sync_every: int = option(
        2500,
        INT,
        "number of messages after which a topic's log is fsynced; 1 delays each OK until its fsync"
        " is done, 0 fsyncs only every -sync-timeout",
        at_least=0,
    )
    sync_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "maximum time between two fsyncs of a topic's log",
        at_least=MILLISECOND_NS,
    )
    queue_scan_worker_pool_max: int = option(4, INT, "no effect: nsqd has no queue scan workers")
    queue_scan_selection_count: int = option(20, INT, "no effect: nsqd does not scan channels")

    msg_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "time for a consumer to finish a message before it is requeued",
        at_least=MILLISECOND_NS,
    )
    max_msg_timeout_ns: int = option(
        15 * 60 * SECOND_NS,
        DURATION,
        "maximum message timeout that a client may request, also with TOUCH",
        at_least=MILLISECOND_NS,
    )
    max_msg_size: int = option(
        1_048_576, INT, "maximum size of a message body in bytes", at_least=1
    )
    max_body_size: int = option(
        5_242_880, INT, "maximum size of a command body in bytes", at_least=1
    )
    max_req_timeout_ns: int = option(
        3600 * SECOND_NS,
        DURATION,
        "maximum delay of REQ, and of DPUB unless -max-defer-timeout is set",
        at_least=0,
    )
    max_heartbeat_interval_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "maximum heartbeat interval that a client may request",
        at_least=MILLISECOND_NS,
    )
    max_rdy_count: int = option(2500, INT, "maximum RDY of a client", at_least=1)
    max_output_buffer_size: int = option(
        65_536, INT, "maximum output buffer in bytes that a client may request", at_least=0
    )
    max_output_buffer_timeout_ns: int = option(
        30 * SECOND_NS,
        DURATION,
        "maximum output buffer timeout that a client may request",
        at_least=0,
    )
    min_output_buffer_timeout_ns: int = option(
        25 * MILLISECOND_NS,
        DURATION,
        "minimum output buffer timeout that a client may request",
        at_least=0,
    )
    output_buffer_timeout_ns: int = option(
        250 * MILLISECOND_NS,
        DURATION,
        "output buffer timeout of a client that requests none",
        at_least=0,
    )
    max_channel_consumers: int = option(
        0, INT, "maximum consumers of a channel; 0 for no limit", at_least=0
    )

    statsd_address: str = option("", STRING, "statsd to send metrics to over UDP, address:port")
    statsd_prefix: str = option(
        "nsq.%s",
        STRING,
        "prefix of statsd keys; %s is replaced by the broadcast address and HTTP port",
    )
    statsd_interval_ns: int = option(
        60 * SECOND_NS, DURATION, "interval of reports to statsd; 0 for no reports", at_least=0
    )
    statsd_mem_stats: bool = option(True, BOOL, "send memory metrics to statsd")
    statsd_udp_packet_size: int = option(
        508, INT, "maximum size of a statsd packet in bytes", at_least=1, at_most=65507
    )
    statsd_exclude_ephemeral: bool = option(
        False, BOOL, "exclude ephemeral topics and channels from statsd"
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (),
        FLOATS,
        "quantile to track of the time from publish to FIN, in (0, 1]; separate several by commas",
        flag="e2e-processing-latency-percentile",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        600 * SECOND_NS, DURATION, "time window of the latency quantiles", at_least=MILLISECOND_NS
    )

    tls_cert: str = option("", STRING, "path of the TLS certificate (PEM)")
    tls_key: str = option("", STRING, "path of the TLS key (PEM)")
    tls_root_ca_file: str = option("", STRING, "path of the CA certificates for verifying clients")
    tls_client_auth_policy: str = option(
        "",
        STRING,
        "demand a client certificate: require accepts any, require-verify only one signed by a CA"
        " of -tls-root-ca-file (by default, of the system); implies -tls-required",
        choices=("", "require", "require-verify"),
    )
    tls_required: TlsRequired = option(
        TlsRequired.NONE,
        TLS_REQUIRED,
        "refuse unencrypted connections: true, false, or tcp-https, which allows plain HTTP",
    )
    tls_min_version: TlsVersion = option(
        TlsVersion.TLS1_2, TLS_VERSION, "minimum TLS version: tls1.0, tls1.1, tls1.2, tls1.3"
    )

    deflate: bool = option(True, BOOL, "allow clients to negotiate deflate")
    max_deflate_level: int = option(
        6, INT, "maximum deflate level that a client may request", at_least=1, at_most=9
    )
    snappy: bool = option(True, BOOL, "allow clients to negotiate snappy")
    enable_experiment: tuple[str, ...] = option(
        (),
        STRINGS,
        f"experiment to enable: {TOPOLOGY_AWARE_CONSUMPTION}, which prefers consumers of the same "
        "zone, then those of the same region",
    )

    http_auth_token_file: str = option(
        "",
        STRING,
        "path of a file with bearer tokens and scopes for the HTTP API; empty for no tokens",
    )
    http_allowed_origins: tuple[str, ...] = allowed_origins_option()
    requeue_on_disconnect: bool = option(
        True,
        BOOL,
        "requeue the messages of a disconnected consumer at once; false waits for their timeout, as"
        " NSQ does",
    )
    lookupd_tls: bool = option(
        False,
        BOOL,
        "use TLS for both ports of nsqlookupd, with -tls-cert as the client certificate if set",
    )
    lookupd_tls_root_ca_file: str = option(
        "",
        STRING,
        "path of the CA certificates for verifying nsqlookupd; empty for the system's",
    )
    sigterm: str = option(
        "stop",
        STRING,
        "action on SIGTERM: stop, or drain, which stops when consumers have finished all messages",
        choices=("stop", "drain"),
    )
    drain_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "maximum time of draining before nsqd stops; 0 for no limit",
        at_least=0,
    )
    max_defer_timeout_ns: int = option(
        0,
        DURATION,
        "maximum delay of DPUB and /pub?defer=; 0 for that of -max-req-timeout",
        at_least=0,
    )
    max_connections: int = option(
        20_000, INT, "maximum connections, TCP and HTTP together; 0 for no limit", at_least=0
    )
    max_connections_per_address: int = option(
        10_000, INT, "maximum connections from one address; 0 for no limit", at_least=0
    )
    greeting_timeout_ns: int = option(
        30 * SECOND_NS,
        DURATION,
        "timeout for a TCP client to send the protocol magic",
        at_least=MILLISECOND_NS,
    )
    command_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "timeout for a command to arrive completely, also for clients without heartbeats",
        at_least=MILLISECOND_NS,
    )
    max_topics: int = option(20_000, INT, "maximum topics; 0 for no limit", at_least=0)
    max_channels_per_topic: int = option(
        1_000, INT, "maximum channels of a topic; 0 for no limit", at_least=0
    )
    retention_time_ns: int = option(
        0,
        DURATION,
        "time to keep messages that every channel has finished; 0 for no retention by time",
        at_least=0,
    )
    retention_bytes: int = option(
        0,
        INT,
        "keep messages that every channel has finished while the topic's log is smaller than this,"
        " in bytes; 0 for no retention by size",
        at_least=0,
    )
    shards: int = option(
        1,
        INT,
        "number of nsqd processes, one per core; each has ports 100 higher than the one before",
        at_least=1,
        at_most=SHARDS_MAX,
    )
    cluster: str = option(
        "", STRING, "name of the cluster; nsqd is then a member of the replicated node -node"
    )
    node: str = option("", STRING, "name of the replicated node, the same for all its members")
    nodes: str = option(
        "",
        STRING,
        "names of several replicated nodes, with commas, instead of -node: one process for each,"
        " with ports 100 higher than the one before; each node has a different preferred leader",
    )
    member: str = option(
        "", STRING, "name of this member of the node", default_text="the host name"
    )
    etcd_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "URL of a server of etcd, which stores which member leads, such as http://10.0.0.1:2379"
        " (may be given multiple times, or with commas)",
        flag="etcd",
        key="etcd",
    )
    etcd_user: str = option("", STRING, "user name for etcd")
    etcd_password_file: str = option("", STRING, "file with the password for etcd")
    etcd_tls_root_ca_file: str = option(
        "",
        STRING,
        "path of the CA certificates for verifying etcd at https URLs; empty for the system's;"
        " -tls-cert is the client certificate",
    )
    cluster_token_file: str = option(
        "",
        STRING,
        "file with a secret that all members share; a leader refuses followers without it",
    )
    cluster_tls: bool = option(
        False,
        BOOL,
        "connect to the leader with TLS: this member sends -tls-cert, and verifies the leader's"
        " certificate with -tls-root-ca-file",
    )
    replicas: int = option(3, INT, "intended number of members of the node", at_least=1)
    min_in_sync: int = option(
        0,
        INT,
        "number of members that must have a message before it is acknowledged; with fewer,"
        " publishes are refused; 0 for more than half of -replicas",
        at_least=0,
    )
    replica_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "time without an acknowledgement after which the leader no longer waits for a follower",
        at_least=100 * MILLISECOND_NS,
    )
    leader_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "time without a sign of life in etcd after which another member replaces the leader",
        at_least=SECOND_NS,
    )


def check(options: NsqdOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    check_values(options)
    if not options.tcp_address:
        raise ConfigError("--tcp-address must not be empty")
    for quantile in options.e2e_processing_latency_percentiles:
        if not 0 < quantile <= 1:
            raise ConfigError(
                f"--e2e-processing-latency-percentile must be in (0, 1], not {quantile}"
            )
    if options.statsd_address and not has_port(options.statsd_address):
        raise ConfigError(f"--statsd-address must be address:port, not {options.statsd_address}")
    check_allowed_origins(options.http_allowed_origins)
    _check_tls(options)
    _check_replication(options)


def in_effect(options: NsqdOptions) -> NsqdOptions:
    """The options with implied values: requiring certificates implies requiring TLS."""
    if options.tls_client_auth_policy and options.tls_required is TlsRequired.NONE:
        return replace(options, tls_required=TlsRequired.ALL)
    return options


def _check_tls(options: NsqdOptions) -> None:
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("--tls-cert and --tls-key must be set together")
    if options.tls_cert:
        return
    if options.tls_required:
        raise ConfigError("--tls-required needs --tls-cert and --tls-key")
    if options.tls_client_auth_policy:
        raise ConfigError("--tls-client-auth-policy needs --tls-cert and --tls-key")


def _check_replication(options: NsqdOptions) -> None:
    if not options.cluster:
        if options.node or options.nodes or options.etcd_addresses:
            raise ConfigError("--node, --nodes and --etcd need --cluster")
        return
    if bool(options.node) == bool(options.nodes):
        raise ConfigError("--cluster needs either --node or --nodes")
    if not options.etcd_addresses:
        raise ConfigError("--cluster needs --etcd")
    if options.shards > 1:
        raise ConfigError("--cluster and --shards cannot be used together")
    if options.min_in_sync > options.replicas:
        raise ConfigError("--min-in-sync must not be above --replicas")
    _check_cluster_tls(options)
    _check_fixed_port("tcp", options.tcp_address)
    _check_fixed_port("http", options.http_address)


def _check_cluster_tls(options: NsqdOptions) -> None:
    if options.cluster_tls and not options.tls_cert:
        raise ConfigError("--cluster-tls needs --tls-cert and --tls-key")
    if options.tls_required and not options.cluster_tls:
        raise ConfigError("--cluster and --tls-required need --cluster-tls")


def _check_fixed_port(name: str, address: str) -> None:
    """A member announces its ports before it listens on them."""
    if address and (not has_port(address) or address.endswith(":0")):
        raise ConfigError(f"--cluster needs a port in --{name}-address, and not 0")
