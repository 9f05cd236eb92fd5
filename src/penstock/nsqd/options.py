"""Everything nsqd can be told. Flags, keys and defaults are NSQ's; those at the end are our own.

`check` refuses what would not work, so that the daemon need not ask again.
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
from penstock.common.option_types import BOOL, DURATION, FLOATS, INT, STRING, STRINGS, word_of
from penstock.common.options import check_values, option

__all__ = [
    "NODE_IDS",
    "TOPOLOGY_AWARE_CONSUMPTION",
    "NsqdOptions",
    "TlsRequired",
    "TlsVersion",
    "check",
    "in_effect",
]


class TlsRequired(IntEnum):
    """Whom we refuse to serve in clear text; the numbers are `/config`'s."""

    NOBODY = 0
    TCP_AND_HTTPS = 1  # everybody but plain HTTP
    EVERYBODY = 2


class TlsVersion(IntEnum):
    """TLS versions by their numbers on the wire, which are also `/config`'s."""

    TLS1_0 = 0x0301
    TLS1_1 = 0x0302
    TLS1_2 = 0x0303
    TLS1_3 = 0x0304


TLS_REQUIRED = word_of(
    {
        "false": TlsRequired.NOBODY,
        "true": TlsRequired.EVERYBODY,
        "tcp-https": TlsRequired.TCP_AND_HTTPS,
        "0": TlsRequired.NOBODY,
        "f": TlsRequired.NOBODY,
        "1": TlsRequired.EVERYBODY,
        "t": TlsRequired.EVERYBODY,
    },
    is_switch=True,
)

TLS_VERSION = word_of(
    {
        "tls1.0": TlsVersion.TLS1_0,
        "tls1.1": TlsVersion.TLS1_1,
        "tls1.2": TlsVersion.TLS1_2,
        "tls1.3": TlsVersion.TLS1_3,
        "": TlsVersion.TLS1_2,
    }
)

SHARDS_MAX = 64
NODE_IDS = 1024  # a message id has 10 bits for its node

TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"


def _hostname() -> str:
    return os.uname().nodename


def _node_id_of_host() -> int:
    import hashlib  # noqa: PLC0415 (OpenSSL: too slow for `nsqd -version`)
    import zlib  # noqa: PLC0415

    digest = hashlib.md5(_hostname().encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """The options of one nsqd."""

    log_prefix: str = prefix_option("[nsqd] ")

    node_id: int = option(
        _node_id_of_host,
        INT,
        "the part of message ids that tells this node from others",
        key="id",
        default_text="hash of the hostname",
        at_least=0,
        at_most=NODE_IDS - 1,
    )
    worker_id: bool = option(False, BOOL, "deprecated, no effect: see -node-id", key=None)
    tcp_address: str = option(
        "0.0.0.0:4150", STRING, "where TCP clients connect: address:port, or a unix socket's path"
    )
    http_address: str = option(
        "0.0.0.0:4151",
        STRING,
        "where HTTP is served: address:port, or a unix socket's path; empty for nowhere",
    )
    https_address: str = option(
        "0.0.0.0:4152",
        STRING,
        "where HTTPS is served, given -tls-cert and -tls-key: address:port; empty for nowhere",
    )
    broadcast_address: str = option(
        _hostname, STRING, "the address that nsqlookupd hands to consumers", default_text="hostname"
    )
    broadcast_tcp_port: int = option(
        0,
        INT,
        "the TCP port that nsqlookupd hands to consumers; 0 for the one listened on",
        at_least=0,
        at_most=65535,
    )
    broadcast_http_port: int = option(
        0,
        INT,
        "the HTTP port that nsqlookupd hands out; 0 for the one listened on",
        at_least=0,
        at_most=65535,
    )
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "an nsqlookupd to register with, address:port",
        flag="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
    )
    topology_region: str = option("", STRING, "the region this node is in")
    topology_zone: str = option("", STRING, "the zone, within its region, this node is in")

    auth_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "an auth server to ask, address:port or URL",
        flag="auth-http-address",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = option(
        "get", STRING, "how the auth server is asked", choices=("get", "post")
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "limit on connecting to an auth server or nsqlookupd",
        at_least=MILLISECOND_NS,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "limit on a request to an auth server or nsqlookupd, connecting included",
        at_least=MILLISECOND_NS,
    )

    data_path: str = option(
        "", STRING, "the folder that holds the messages", default_text="working directory"
    )
    mem_queue_size: int = option(
        10_000,
        INT,
        "messages a channel holds in memory ahead of its readers; the rest is read back from disk",
        at_least=0,
    )
    max_bytes_per_file: int = option(
        104_857_600, INT, "size at which a topic's log starts a new file", at_least=1
    )
    sync_every: int = option(
        2500,
        INT,
        "fsync a topic's log after so many messages; 1 delays each OK until its fsync is done, 0"
        " fsyncs only every -sync-timeout",
        at_least=0,
    )
    sync_timeout_ns: int = option(
        2 * SECOND_NS, DURATION, "fsync a topic's log at least so often", at_least=MILLISECOND_NS
    )
    queue_scan_worker_pool_max: int = option(
        4, INT, "no effect: timers here need no scanning workers"
    )
    queue_scan_selection_count: int = option(
        20, INT, "no effect: timers here need no scanning of channels"
    )

    msg_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "how long a consumer has to answer a message before it is given out again",
        at_least=MILLISECOND_NS,
    )
    max_msg_timeout_ns: int = option(
        15 * 60 * SECOND_NS,
        DURATION,
        "the longest a consumer may ask for, or TOUCH a message to",
        at_least=MILLISECOND_NS,
    )
    max_msg_size: int = option(1_048_576, INT, "largest message body, in bytes", at_least=1)
    max_body_size: int = option(5_242_880, INT, "largest command body, in bytes", at_least=1)
    max_req_timeout_ns: int = option(
        3600 * SECOND_NS, DURATION, "the longest a message may be deferred or requeued", at_least=0
    )
    max_heartbeat_interval_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "the longest heartbeat interval a client may ask for",
        at_least=MILLISECOND_NS,
    )
    max_rdy_count: int = option(2500, INT, "the largest RDY a client may send", at_least=1)
    max_output_buffer_size: int = option(
        65_536, INT, "the largest output buffer a client may ask for, in bytes", at_least=0
    )
    max_output_buffer_timeout_ns: int = option(
        30 * SECOND_NS,
        DURATION,
        "the longest a client may ask output to be held back",
        at_least=0,
    )
    min_output_buffer_timeout_ns: int = option(
        25 * MILLISECOND_NS,
        DURATION,
        "the shortest a client may ask output to be held back",
        at_least=0,
    )
    output_buffer_timeout_ns: int = option(
        250 * MILLISECOND_NS,
        DURATION,
        "how long output may be held back for a client that does not say",
        at_least=0,
    )
    max_channel_consumers: int = option(
        0, INT, "most consumers of one channel; 0 for no limit", at_least=0
    )

    statsd_address: str = option("", STRING, "a statsd to send figures to by UDP, address:port")
    statsd_prefix: str = option("nsq.%s", STRING, "prefix of statsd keys; %s is this node")
    statsd_interval_ns: int = option(
        60 * SECOND_NS, DURATION, "time between two reports to statsd; 0 for no reports", at_least=0
    )
    statsd_mem_stats: bool = option(True, BOOL, "report memory figures to statsd as well")
    statsd_udp_packet_size: int = option(
        508, INT, "largest statsd packet, in bytes", at_least=1, at_most=65507
    )
    statsd_exclude_ephemeral: bool = option(
        False, BOOL, "leave ephemeral topics and channels out of statsd"
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (),
        FLOATS,
        "a quantile of the time from publish to FIN to track, in (0, 1]; or several, with commas",
        flag="e2e-processing-latency-percentile",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        600 * SECOND_NS, DURATION, "how far back those quantiles look", at_least=MILLISECOND_NS
    )

    tls_cert: str = option("", STRING, "path of the TLS certificate, PEM")
    tls_key: str = option("", STRING, "path of the TLS key, PEM")
    tls_root_ca_file: str = option("", STRING, "path of the CA certificates to verify clients by")
    tls_client_auth_policy: str = option(
        "",
        STRING,
        "ask clients for any certificate, or one that verifies; implies -tls-required",
        choices=("", "require", "require-verify"),
    )
    tls_required: TlsRequired = option(
        TlsRequired.NOBODY,
        TLS_REQUIRED,
        "serve nobody in clear text: true, false, or tcp-https, which exempts plain HTTP",
    )
    tls_min_version: TlsVersion = option(
        TlsVersion.TLS1_2, TLS_VERSION, "oldest TLS to accept: tls1.0, tls1.1, tls1.2, tls1.3"
    )

    deflate: bool = option(True, BOOL, "let clients negotiate deflate")
    max_deflate_level: int = option(
        6, INT, "strongest deflate level a client may ask for", at_least=1, at_most=9
    )
    snappy: bool = option(True, BOOL, "let clients negotiate snappy")
    enable_experiment: tuple[str, ...] = option(
        (),
        STRINGS,
        f"turn on an experiment: {TOPOLOGY_AWARE_CONSUMPTION}, which serves consumers of the same "
        "zone first, then those of the same region",
    )

    http_auth_token_file: str = option(
        "",
        STRING,
        "path of a file of bearer tokens for the HTTP API and their scopes; empty for an open API",
    )
    http_allowed_origins: tuple[str, ...] = allowed_origins_option()
    requeue_on_disconnect: bool = option(
        True,
        BOOL,
        "give a lost consumer's messages to others at once; false waits for their timeout, as NSQ",
    )
    lookupd_tls: bool = option(
        False,
        BOOL,
        "speak TLS to nsqlookupd, on both its ports; with -tls-cert as our certificate, if given",
    )
    lookupd_tls_root_ca_file: str = option(
        "",
        STRING,
        "path of the CA certificates to verify nsqlookupd by; empty for the system's",
    )
    sigterm: str = option(
        "stop",
        STRING,
        "what SIGTERM means: stop now, or drain, which stops when consumers have taken everything",
        choices=("stop", "drain"),
    )
    drain_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "how long draining may take before nsqd stops all the same; 0 for as long as it takes",
        at_least=0,
    )
    max_defer_timeout_ns: int = option(
        0,
        DURATION,
        "the longest a publish may be deferred; 0 for as long as -max-req-timeout",
        at_least=0,
    )
    max_connections: int = option(
        20_000, INT, "most connections at a time, TCP and HTTP together; 0 for no limit", at_least=0
    )
    max_connections_per_address: int = option(
        10_000, INT, "most connections at a time from one address; 0 for no limit", at_least=0
    )
    greeting_timeout_ns: int = option(
        30 * SECOND_NS,
        DURATION,
        "how long a TCP client may take to say which protocol it speaks",
        at_least=MILLISECOND_NS,
    )
    command_timeout_ns: int = option(
        60 * SECOND_NS,
        DURATION,
        "how long a command may take to arrive; also of a client without heartbeats",
        at_least=MILLISECOND_NS,
    )
    max_topics: int = option(20_000, INT, "most topics; 0 for no limit", at_least=0)
    max_channels_per_topic: int = option(
        1_000, INT, "most channels of one topic; 0 for no limit", at_least=0
    )
    retention_time_ns: int = option(
        0,
        DURATION,
        "how long to keep what every channel has finished, to be read again; 0 sets no such limit",
        at_least=0,
    )
    retention_bytes: int = option(
        0,
        INT,
        "how much of a topic to keep that every channel has finished; 0 sets no such limit",
        at_least=0,
    )
    shards: int = option(
        1,
        INT,
        "how many nsqds to run here, one a core; each further one has ports that are 100 higher",
        at_least=1,
        at_most=SHARDS_MAX,
    )


def check(options: NsqdOptions) -> None:
    """Raises ConfigError if nsqd cannot do as these options say."""
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


def in_effect(options: NsqdOptions) -> NsqdOptions:
    """The options as they are acted on: to demand certificates is to require TLS."""
    if options.tls_client_auth_policy and options.tls_required is TlsRequired.NOBODY:
        return replace(options, tls_required=TlsRequired.EVERYBODY)
    return options


def _check_tls(options: NsqdOptions) -> None:
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("--tls-cert and --tls-key go together")
    if options.tls_cert:
        return
    if options.tls_required:
        raise ConfigError("--tls-required needs --tls-cert and --tls-key")
    if options.tls_client_auth_policy:
        raise ConfigError("--tls-client-auth-policy needs --tls-cert and --tls-key")
