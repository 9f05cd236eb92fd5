"""Everything nsqadmin can be told.

Flags, config keys and defaults are NSQ's; the log format, sampling, login and the token for nsqds
are our own.
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
        "address for HTTP: address:port, or the path of a unix socket, which must contain a /",
    )
    base_path: str = option("/", STRING, "the path that every page and call begins with")
    dev_static_dir: str = option(
        "", STRING, "a folder to serve /static from instead of our own, for work on the pages"
    )

    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqlookupd; may be given more than once",
        flag="lookupd-http-address",
        key="nsqlookupd_http_addresses",
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqd, where there is no nsqlookupd; may be given more than once",
        flag="nsqd-http-address",
        key="nsqd_http_addresses",
    )

    http_client_connect_timeout_ns: int = option(
        2 * SECOND_NS,
        DURATION,
        "how long connecting to an nsqd or nsqlookupd may take",
        at_least=MILLISECOND_NS,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "how long an nsqd or nsqlookupd may take to answer",
        at_least=MILLISECOND_NS,
    )
    http_client_tls_insecure_skip_verify: bool = option(
        False, BOOL, "accept any certificate of an nsqd or nsqlookupd"
    )
    http_client_tls_root_ca_file: str = option(
        "", STRING, "path of the CA certificates to verify nsqds and nsqlookupds by"
    )
    http_client_tls_cert: str = option(
        "", STRING, "path of the certificate to show to nsqds and nsqlookupds, PEM"
    )
    http_client_tls_key: str = option("", STRING, "path of its key, PEM")
    http_client_token_file: str = option(
        "", STRING, "path of a file with the token that nsqds ask for: -http-auth-token-file there"
    )

    allow_config_from_cidr: str = option(
        "127.0.0.1/8", STRING, "who may use /config: a network as a CIDR; empty for everybody"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        STRINGS,
        "public host name of nsqadmin; *.example.com for all subdomains, * for any name; may be"
        " given more than once",
        flag="allowed-host",
        key="allowed_hosts",
    )
    acl_http_header: str = option(
        "X-Forwarded-User",
        STRING,
        "the header in which a proxy before us names the user; see -admin-user",
    )
    admin_users: tuple[str, ...] = option(
        (),
        STRINGS,
        "a user who may change things; may be given more than once; without any, everybody may",
        flag="admin-user",
        key="admin_users",
    )
    auth_token_file: str = option(
        "", STRING, "path of a file of tokens, one a line: whoever comes has to log in with one"
    )
    notification_http_endpoint: str = option(
        "", STRING, "URL that every change is POSTed to, as JSON"
    )

    sample_interval_ns: int = option(
        5 * SECOND_NS,
        DURATION,
        "how often nsqds are asked for the figures that the charts show; 0 for never",
        at_least=0,
    )

    graphite_url: str = option("", STRING, "URL of a graphite, to link to")
    proxy_graphite: bool = option(False, BOOL, "pass /render on to the graphite")
    statsd_counter_format: str = option(
        "stats.counters.%s.count", STRING, "what statsd makes of the name of a counter"
    )
    statsd_gauge_format: str = option(
        "stats.gauges.%s", STRING, "what statsd makes of the name of a gauge"
    )
    statsd_prefix: str = option(
        "nsq.%s", STRING, "what nsqds put before the names they send to statsd; %s is the host"
    )
    statsd_interval_ns: int = option(
        60 * SECOND_NS, DURATION, "interval at which nsqds send to statsd", at_least=0
    )


def check(options: NsqadminOptions) -> None:
    """Raises ConfigError if nsqadmin cannot do as these options say."""
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
        raise ConfigError("--proxy-graphite needs a --graphite-url of http:// or https://")
    if options.allow_config_from_cidr:
        _check_cidr(options.allow_config_from_cidr)


def normalized(options: NsqadminOptions) -> NsqadminOptions:
    """The same with the base path as the routes want it: one slash before, none behind."""
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
