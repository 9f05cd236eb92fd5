"""Options of nsqlookupd. Flags, keys and defaults are NSQ's; the limits are not in NSQ."""

import os
from dataclasses import dataclass

from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.daemon_options import (
    DaemonOptions,
    allowed_origins_option,
    check_allowed_origins,
    prefix_option,
)
from penstock.common.errors import ConfigError
from penstock.common.option_types import DURATION, INT, STRING
from penstock.common.options import check_values, option

__all__ = ["NsqlookupdOptions", "check"]


def _hostname() -> str:
    return os.uname().nodename


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """The options of one nsqlookupd."""

    log_prefix: str = prefix_option("[nsqlookupd] ")

    tcp_address: str = option(
        "0.0.0.0:4160",
        STRING,
        "TCP address for nsqd: address:port, or the path of a unix socket, which must contain a /",
    )
    http_address: str = option(
        "0.0.0.0:4161",
        STRING,
        "HTTP address: address:port, or the path of a unix socket, which must contain a /",
    )
    broadcast_address: str = option(
        _hostname, STRING, "address of this nsqlookupd for nsqd", default_text="hostname"
    )

    tls_cert: str = option(
        "", STRING, "path of the TLS certificate (PEM); if set, both ports use TLS only"
    )
    tls_key: str = option("", STRING, "path of the TLS key (PEM)")
    tls_root_ca_file: str = option("", STRING, "path of the CA certificates for verifying clients")
    tls_client_auth_policy: str = option(
        "",
        STRING,
        "demand a certificate of nsqds and HTTP clients: require accepts any, require-verify only"
        " one signed by a CA of -tls-root-ca-file (by default, of the system)",
        choices=("", "require", "require-verify"),
    )

    http_allowed_origins: tuple[str, ...] = allowed_origins_option()

    inactive_producer_timeout_ns: int = option(
        300 * SECOND_NS,
        DURATION,
        "time without a PING after which responses omit an nsqd",
        at_least=0,
    )
    tombstone_lifetime_ns: int = option(
        45 * SECOND_NS,
        DURATION,
        "time during which a tombstoned nsqd is left out of lookups",
        at_least=0,
    )

    max_connections: int = option(
        20_000, INT, "maximum TCP connections; 0 for no limit", at_least=0
    )
    max_connections_per_address: int = option(
        10_000, INT, "maximum TCP connections from one address; 0 for no limit", at_least=0
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
        "timeout for a TCP client to identify itself, to complete a command, and to read responses",
        at_least=MILLISECOND_NS,
    )
    max_topics: int = option(100_000, INT, "maximum topics; 0 for no limit", at_least=0)
    max_channels_per_topic: int = option(
        10_000, INT, "maximum channels of a topic; 0 for no limit", at_least=0
    )
    max_lookup_wait_ns: int = option(
        60 * SECOND_NS, DURATION, "maximum time that /lookup?wait= waits for a change", at_least=0
    )
    max_waiting_lookups: int = option(
        10_000, INT, "maximum waiting lookups; further ones do not wait", at_least=0
    )


def check(options: NsqlookupdOptions) -> None:
    """Raises ConfigError if the options are invalid."""
    check_values(options)
    for flag, address in (("tcp", options.tcp_address), ("http", options.http_address)):
        if not address:
            raise ConfigError(f"--{flag}-address must not be empty")
    check_allowed_origins(options.http_allowed_origins)
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("--tls-cert and --tls-key must be set together")
    if options.tls_client_auth_policy and not options.tls_cert:
        raise ConfigError("--tls-client-auth-policy needs --tls-cert and --tls-key")
