from pathlib import Path
from typing import Any

import pytest

from penstock.common.clock import MILLISECOND_NS, SECOND_NS
from penstock.common.errors import ConfigError, UsageError
from penstock.common.options import (
    load_config,
    markdown_page,
    option_value,
    options_of,
    parse_flags,
)
from penstock.nsqd.options import NsqdOptions, TlsRequired, TlsVersion, check, in_effect

# What a stock nsqd answers to GET /config/<key> when it is started without flags, save for what
# depends on the machine.
NSQ_DEFAULTS: dict[str, object] = {
    "auth_http_addresses": [],
    "auth_http_request_method": "get",
    "broadcast_http_port": 0,
    "broadcast_tcp_port": 0,
    "data_path": "",
    "deflate": True,
    "e2e_processing_latency_percentiles": [],
    "e2e_processing_latency_window_time": 600 * SECOND_NS,
    "enable_experiment": [],
    "http_address": "0.0.0.0:4151",
    "http_client_connect_timeout": 2 * SECOND_NS,
    "http_client_request_timeout": 5 * SECOND_NS,
    "https_address": "0.0.0.0:4152",
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "max_body_size": 5_242_880,
    "max_bytes_per_file": 104_857_600,
    "max_channel_consumers": 0,
    "max_deflate_level": 6,
    "max_heartbeat_interval": 60 * SECOND_NS,
    "max_msg_size": 1_048_576,
    "max_msg_timeout": 900 * SECOND_NS,
    "max_output_buffer_size": 65_536,
    "max_output_buffer_timeout": 30 * SECOND_NS,
    "max_rdy_count": 2500,
    "max_req_timeout": 3600 * SECOND_NS,
    "mem_queue_size": 10_000,
    "min_output_buffer_timeout": 25 * MILLISECOND_NS,
    "msg_timeout": 60 * SECOND_NS,
    "nsqlookupd_tcp_addresses": [],
    "output_buffer_timeout": 250 * MILLISECOND_NS,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "snappy": True,
    "statsd_address": "",
    "statsd_exclude_ephemeral": False,
    "statsd_interval": 60 * SECOND_NS,
    "statsd_mem_stats": True,
    "statsd_prefix": "nsq.%s",
    "statsd_udp_packet_size": 508,
    "sync_every": 2500,
    "sync_timeout": 2 * SECOND_NS,
    "tcp_address": "0.0.0.0:4150",
    "tls_cert": "",
    "tls_client_auth_policy": "",
    "tls_key": "",
    "tls_min_version": 771,  # different from NSQ: 769 is no longer safe
    "tls_required": 0,
    "tls_root_ca_file": "",
    "topology_region": "",
    "topology_zone": "",
}

DEPENDS_ON_THE_MACHINE = {"broadcast_address", "id"}
OUR_OWN = {
    "cluster",
    "cluster_tls",
    "cluster_token_file",
    "command_timeout",
    "drain_timeout",
    "etcd",
    "etcd_password_file",
    "etcd_tls_root_ca_file",
    "etcd_user",
    "greeting_timeout",
    "http_auth_token_file",
    "http_allowed_origins",
    "leader_timeout",
    "log_format",
    "lookupd_tls",
    "lookupd_tls_root_ca_file",
    "max_channels_per_topic",
    "max_connections",
    "max_connections_per_address",
    "max_defer_timeout",
    "max_topics",
    "member",
    "min_in_sync",
    "node",
    "nodes",
    "replica_timeout",
    "replicas",
    "requeue_on_disconnect",
    "retention_bytes",
    "retention_time",
    "shards",
    "sigterm",
}
ONLY_FLAGS = {"version", "config", "verbose", "worker-id"}


def test_keys_and_defaults_are_those_of_nsq() -> None:
    options = NsqdOptions()
    keys = {declared.key for declared in options_of(NsqdOptions) if declared.key}

    assert keys == NSQ_DEFAULTS.keys() | DEPENDS_ON_THE_MACHINE | OUR_OWN
    assert NSQ_DEFAULTS == {key: option_value(options, key) for key in NSQ_DEFAULTS}
    assert ONLY_FLAGS == {declared.flag for declared in options_of(NsqdOptions) if not declared.key}


def test_the_defaults_are_valid() -> None:
    check(NsqdOptions())


def test_by_default_the_node_id_is_that_of_the_data_path() -> None:
    assert None is NsqdOptions().node_id


def test_the_default_broadcast_address_is_the_hostname() -> None:
    hostname = Path("/proc/sys/kernel/hostname").read_text().strip()

    assert hostname == NsqdOptions().broadcast_address


@pytest.mark.parametrize(
    ("flag", "field", "expected"),
    [
        ("-node-id=0x3ff", "node_id", 1023),
        ("-msg-timeout=1h2m3s4ms", "msg_timeout_ns", 3_723_004 * MILLISECOND_NS),
        ("-lookupd-tcp-address=a:4160", "lookupd_tcp_addresses", ("a:4160",)),
        ("-auth-http-address=a:80,b:80", "auth_http_addresses", ("a:80,b:80",)),
        (
            "-e2e-processing-latency-percentile=0.5,1",
            "e2e_processing_latency_percentiles",
            (1, 0.5),
        ),
        ("-tls-required", "tls_required", TlsRequired.ALL),
        ("-tls-required=TCP-HTTPS", "tls_required", TlsRequired.TCP_AND_HTTPS),
        ("-tls-required=0", "tls_required", TlsRequired.NONE),
        ("-tls-min-version=TLS1.3", "tls_min_version", TlsVersion.TLS1_3),
        ("-tls-min-version=", "tls_min_version", TlsVersion.TLS1_2),
        ("-snappy=false", "snappy", False),
        ("-requeue-on-disconnect=false", "requeue_on_disconnect", False),
    ],
)
def test_flags_set_their_fields(flag: str, field: str, expected: object) -> None:
    assert {field: expected} == parse_flags(NsqdOptions, [flag]).values


def test_ssl3_is_refused_as_in_nsq() -> None:
    with pytest.raises(UsageError, match=r"must be tls1\.0, tls1\.1, tls1\.2 or tls1\.3"):
        parse_flags(NsqdOptions, ["-tls-min-version=ssl3.0"])


def test_a_config_file_of_nsq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(
        """
        id = 5
        verbose = false
        log_level = "debug"
        nsqlookupd_tcp_addresses = ["127.0.0.1:4160"]
        auth_http_addresses = "a:80,b:80"
        msg_timeout = "60s"
        sync_timeout = 2500
        tls_required = true
        tls_min_version = "tls1.2"
        statsd_mem_stats = 1
        e2e_processing_latency_percentiles = [0.95, 1.0]
        """
    )

    expected = {
        "node_id": 5,
        "log_level": 1,
        "lookupd_tcp_addresses": ("127.0.0.1:4160",),
        "auth_http_addresses": ("a:80", "b:80"),
        "msg_timeout_ns": 60 * SECOND_NS,
        "sync_timeout_ns": 2500 * MILLISECOND_NS,
        "tls_required": TlsRequired.ALL,
        "tls_min_version": TlsVersion.TLS1_2,
        "statsd_mem_stats": False,
        "e2e_processing_latency_percentiles": (1.0, 0.95),
    }

    assert expected == load_config(NsqdOptions, str(path))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"node_id": -1}, "--node-id must be from 0 to 1023, not -1"),
        (
            {"http_client_connect_timeout_ns": 0},
            "--http-client-connect-timeout must be 1ms or more, not 0s",
        ),
        (
            {"http_client_request_timeout_ns": 0},
            "--http-client-request-timeout must be 1ms or more, not 0s",
        ),
        ({"node_id": 1024}, "--node-id must be from 0 to 1023, not 1024"),
        ({"max_deflate_level": 0}, "--max-deflate-level must be from 1 to 9, not 0"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be from 1 to 9, not 10"),
        ({"mem_queue_size": -1}, "--mem-queue-size must be 0 or more, not -1"),
        ({"sync_timeout_ns": 0}, "--sync-timeout must be 1ms or more, not 0s"),
        ({"broadcast_tcp_port": 65536}, "--broadcast-tcp-port must be from 0 to 65535, not 65536"),
        (
            {"auth_http_request_method": "put"},
            "--auth-http-request-method must be get or post, not put",
        ),
        (
            {"tls_client_auth_policy": "maybe"},
            "--tls-client-auth-policy must be empty, require or require-verify, not maybe",
        ),
        ({"log_format": "xml"}, "--log-format must be text or json, not xml"),
        ({"tcp_address": ""}, "--tcp-address must not be empty"),
        (
            {"e2e_processing_latency_percentiles": (1.5, 0.5)},
            "--e2e-processing-latency-percentile must be in (0, 1], not 1.5",
        ),
        (
            {"e2e_processing_latency_percentiles": (float("nan"),)},
            "--e2e-processing-latency-percentile must be in (0, 1], not nan",
        ),
        ({"statsd_address": "a"}, "--statsd-address must be address:port, not a"),
        ({"statsd_address": "a:65536"}, "--statsd-address must be address:port, not a:65536"),
        (
            {"tls_required": TlsRequired.TCP_AND_HTTPS},
            "--tls-required needs --tls-cert and --tls-key",
        ),
        (
            {"tls_client_auth_policy": "require"},
            "--tls-client-auth-policy needs --tls-cert and --tls-key",
        ),
        ({"tls_cert": "x.pem"}, "--tls-cert and --tls-key must be set together"),
        ({"tls_key": "x.key"}, "--tls-cert and --tls-key must be set together"),
    ],
)
def test_invalid_options_are_refused_in_one_line(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(NsqdOptions(**values))

    assert expected == str(refused.value)


@pytest.mark.parametrize(
    ("policy", "required", "expected"),
    [
        ("", TlsRequired.NONE, TlsRequired.NONE),
        ("require", TlsRequired.NONE, TlsRequired.ALL),
        ("require-verify", TlsRequired.TCP_AND_HTTPS, TlsRequired.TCP_AND_HTTPS),
    ],
)
def test_requiring_certificates_implies_requiring_tls(
    policy: str, required: TlsRequired, expected: TlsRequired
) -> None:
    options = NsqdOptions(tls_client_auth_policy=policy, tls_required=required)

    assert expected is in_effect(options).tls_required


@pytest.mark.parametrize(
    "flag",
    [
        "-sync-every=0",
        "-statsd-interval=0",
        "-max-output-buffer-size=0",
        "-lookupd-tcp-address=lookup.example",
    ],
)
def test_values_that_nsq_accepts_are_accepted(flag: str) -> None:
    check(NsqdOptions(**parse_flags(NsqdOptions, [flag]).values))


def test_unknown_experiments_are_ignored() -> None:
    check(NsqdOptions(enable_experiment=("warp-drive",)))


def test_the_documentation_of_options_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs/reference/nsqd_options.md"

    assert markdown_page(NsqdOptions, "nsqd") == page.read_text(), "run: make docs"
