"""Parts of the text that a test of the running program cannot control."""

from penstock.common.clock import SECOND_NS
from penstock.nsqd.stats import (
    ChannelStatsJson,
    ClientStatsJson,
    LatencyJson,
    StatsJson,
    TopicStatsJson,
    run_steps,
)
from penstock.nsqd.stats_text import text_steps

STARTED_AT_NS = 1_700_000_000 * SECOND_NS

LATENCY: LatencyJson = {
    "count": 4,
    "percentiles": [
        {"quantile": 0.99, "value": 1_500_000_000.0},
        {"quantile": 0.9, "value": 2_340_000.0},
        {"quantile": 0.5, "value": 1_100.0},
        {"quantile": 0.1, "value": 1000.0},
    ],
}


def client(remote_address: str) -> ClientStatsJson:
    return {
        "client_id": "id",
        "hostname": "host",
        "version": "V2",
        "remote_address": remote_address,
        "state": 3,
        "ready_count": 2500,
        "in_flight_count": 12345,
        "message_count": 123456789,
        "finish_count": 2,
        "requeue_count": 3,
        "connect_ts": 1_700_000_000 - 4000,
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "user_agent": "agent",
        "topology_zone": "",
        "topology_region": "",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


CHANNEL: ChannelStatsJson = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 4,
    "message_count": 5,
    "requeue_count": 6,
    "timeout_count": 7,
    "client_count": 2,
    "clients": [client("10.0.0.1:80"), client("@")],
    "paused": False,
    "e2e_processing_latency": LATENCY,
}

TOPIC: TopicStatsJson = {
    "topic_name": "t",
    "channels": [CHANNEL],
    "depth": 0,
    "backend_depth": 0,
    "message_count": 0,
    "message_bytes": 0,
    "paused": False,
    "e2e_processing_latency": LATENCY,
}

STATS: StatsJson = {
    "version": "1.3.0",
    "health": "NOK - no space left on device",
    "start_time": 1_700_000_000,
    "topics": [TOPIC],
    "producers": None,
}


CHANNEL_LINE = (
    "      [c                        ] depth: 1     be-depth: 2     inflt: 3    def: 4    "
    "re-q: 6     timeout: 7     msgs: 5        "
)
CLIENT_LINE = "state: 3 inflt: 12345 rdy: 2500 fin: 2        "


def test_the_whole_text() -> None:
    wall_ns = STARTED_AT_NS + 65 * SECOND_NS
    page = run_steps(text_steps(STATS, started_at_ns=STARTED_AT_NS, wall_ns=wall_ns))
    lines = page.splitlines()

    assert "uptime 1m5s" == lines[2]
    assert "Health: NOK - no space left on device" == lines[4]
    latency = "e2e%: 1.5s, 2.3ms, 1.1us, 1000.0ns"
    figures = "re-q: 3        msgs: 123456789 connected: 1h7m45s"
    assert [
        f"   [t              ] depth: 0     be-depth: 0     msgs: 0        {latency}",
        f"{CHANNEL_LINE}{latency}",
        f"        [V2 host:80 agent        ] {CLIENT_LINE}{figures}",
        f"        [V2 host: agent          ] {CLIENT_LINE}{figures}",
    ] == lines[7:11]
