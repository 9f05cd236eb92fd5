"""Command-line flags and config keys of nsqadmin.

Flags, keys and defaults are NSQ's. Penstock adds the log format, sampling, login, allowed hosts and
the token for nsqds.
"""

import posixpath
from dataclasses import dataclass, replace
from ipaddress import ip_network

from penstock.common.addresses import is_address
from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.daemon_options import DaemonOptions, prefix_option
from penstock.common.errors import ConfigError
from penstock.common.option_types import BOOL, DURATION, STRING, STRINGS
from penstock.common.options import check_values, option

__all__ = ["NsqadminOptions", "check", "normalized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqadminOptions(DaemonOptions):
    """The options of one nsqadmin."""

    log_prefix: str = prefix_option("[nsqadmin] ")

    http_address: str = option(
        "0.0.0.0:4171",
        STRING,
        "address to listen on for HTTP: host:port, or the path of a Unix socket (must contain a /)",
    )
    base_path: str = option("/", STRING, "URL path under which nsqadmin is served")
    dev_static_dir: str = option(
        "",
        STRING,
        "folder with static files to serve instead of the built-in ones, for development",
    )

    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqlookupd",
        flag="lookupd-http-address",
        key="nsqlookupd_http_addresses",
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqd, for clusters without nsqlookupd",
        flag="nsqd-http-address",
        key="nsqd_http_addresses",
    )

    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "timeout for connecting to an nsqd or nsqlookupd",
        at_least=MILLISECOND_NS,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "timeout for a request to an nsqd or nsqlookupd",
        at_least=MILLISECOND_NS,
    )
    http_client_tls_insecure_skip_verify: bool = option(
        False, BOOL, "do not verify the certificates of nsqds and nsqlookupds"
    )
    http_client_tls_root_ca_file: str = option(
        "",
        STRING,
        "path of a CA bundle for verifying nsqds and nsqlookupds (default: the system's)",
    )
    http_client_tls_cert: str = option(
        "", STRING, "path of the client certificate for nsqds and nsqlookupds (PEM)"
    )
    http_client_tls_key: str = option(
        "", STRING, "path of the client certificate's private key (PEM)"
    )
    http_client_token_file: str = option(
        "", STRING, "path of a file with the token for nsqds that use -http-auth-token-file"
    )

    allow_config_from_cidr: str = option(
        "127.0.0.1/8",
        STRING,
        "network that may use /config, in CIDR notation; empty for no restriction",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        STRINGS,
        "public host name of nsqadmin; *.example.com for all subdomains, * for any name",
        flag="allowed-host",
        key="allowed_hosts",
    )
    acl_http_header: str = option(
        "X-Forwarded-User",
        STRING,
        "HTTP header in which a reverse proxy passes the user name; see -admin-user",
    )
    admin_users: tuple[str, ...] = option(
        (),
        STRINGS,
        "user that may make changes; if none is given, all users may",
        flag="admin-user",
        key="admin_users",
    )
    auth_token_file: str = option(
        "", STRING, "path of a file with login tokens, one per line; if set, a login is required"
    )
    notification_http_endpoint: str = option(
        "", STRING, "URL to which every change is sent, as a POST request with JSON"
    )

    sample_interval_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "interval for polling nsqds for the charts; 0 turns polling off",
        at_least=0,
    )

    graphite_url: str = option("", STRING, "URL of Graphite, for a link in the menu")
    proxy_graphite: bool = option(False, BOOL, "forward requests for /render to Graphite")
    statsd_counter_format: str = option(
        "stats.counters.%s.count", STRING, "format of counter names in statsd; %s is the name"
    )
    statsd_gauge_format: str = option(
        "stats.gauges.%s", STRING, "format of gauge names in statsd; %s is the name"
    )
    statsd_prefix: str = option(
        "nsq.%s", STRING, "prefix of the names that nsqds send to statsd; %s is the host"
    )
    statsd_interval_ns: int = option(
        60 * SECOND_NS, DURATION, "interval at which nsqds send metrics to statsd", at_least=0
    )


def check(options: NsqadminOptions) -> None:
    """Raises ConfigError if an option is invalid."""
    check_values(options)
    if not options.http_address:
        raise ConfigError("--http-address must not be empty")
    lookupds, nsqds = options.lookupd_http_addresses, options.nsqd_http_addresses
    if not lookupds and not nsqds:
        raise ConfigError("--nsqd-http-address or --lookupd-http-address required")
    if lookupds and nsqds:
        raise ConfigError("use --nsqd-http-address or --lookupd-http-address not both")
    for flag, addresses in (("lookupd", lookupds), ("nsqd", nsqds)):
        for address in addresses:
            if not is_address(address.removeprefix("https://")):
                raise ConfigError(f"--{flag}-http-address: {address!r} is not host:port")
    _check_tls(options)
    if options.proxy_graphite and not options.graphite_url.startswith(("http://", "https://")):
        raise ConfigError(
            "--proxy-graphite needs a --graphite-url that starts with http:// or https://"
        )
    if options.allow_config_from_cidr:
        _check_cidr(options.allow_config_from_cidr)


def normalized(options: NsqadminOptions) -> NsqadminOptions:
    """A copy in which the base path starts with one slash and does not end with one."""
    path = posixpath.normpath("/" + options.base_path.strip("/"))
    return replace(options, base_path=path)


def _check_tls(options: NsqadminOptions) -> None:
    if options.http_client_tls_cert and not options.http_client_tls_key:
        raise ConfigError("--http-client-tls-key must be specified with --http-client-tls-cert")
    if options.http_client_tls_key and not options.http_client_tls_cert:
        raise ConfigError("--http-client-tls-cert must be specified with --http-client-tls-key")


def _check_cidr(text: str) -> None:
    try:
        ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(f"failed to parse --allow-config-from-cidr ({text}) - {error}") from None
