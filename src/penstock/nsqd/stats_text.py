"""/stats as text, in the layout of NSQ."""

from datetime import UTC, datetime

from penstock.common.clock import SECOND_NS
from penstock.common.durations import format_duration
from penstock.common.options import version_line
from penstock.nsqd.stats import (
    ROWS_PER_STEP,
    ChannelStatsJson,
    ClientStatsJson,
    LatencyJson,
    StatsJson,
    Steps,
    TopicStatsJson,
)

__all__ = ["text_steps"]


def text_steps(stats: StatsJson, *, started_at_ns: int, wall_ns: int) -> Steps[str]:
    """The response to `GET /stats` without `format=json`, in steps."""
    topics = yield from _topics_text(stats["topics"] or [], wall_ns)
    return "".join(
        (
            f"{version_line('nsqd')}\n",
            f"start_time {_rfc3339(started_at_ns)}\n",
            f"uptime {format_duration(wall_ns - started_at_ns)}\n",
            f"\nHealth: {stats['health']}\n",
            "\nDraining\n" if "draining" in stats else "",
            _memory_text(stats),
            topics,
            _producers_text(stats["producers"] or [], wall_ns),
        )
    )


def _memory_text(stats: StatsJson) -> str:
    if "memory" not in stats:
        return ""
    lines = [f"   {name:<25}\t{value}\n" for name, value in stats["memory"].items()]
    return "\nMemory:\n" + "".join(lines)


def _topics_text(topics: list[TopicStatsJson], wall_ns: int) -> Steps[str]:
    if not topics:
        return "\nTopics: None\n"
    parts = ["\nTopics:"]
    for topic in topics:
        parts.append(_topic_line(topic))
        for channel in topic["channels"]:
            parts.append(_channel_text(channel, wall_ns))
            if not len(parts) % ROWS_PER_STEP:
                yield
    return "".join(parts)


def _topic_line(topic: TopicStatsJson) -> str:
    return (
        f"\n{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}]"
        f" depth: {topic['depth']:<5}"
        f" be-depth: {topic['backend_depth']:<5}"
        f" msgs: {topic['message_count']:<8}"
        f" e2e%: {_latency_text(topic['e2e_processing_latency'])}\n"
    )


def _channel_text(channel: ChannelStatsJson, wall_ns: int) -> str:
    line = (
        f"   {'*P ' if channel['paused'] else '   '}[{channel['channel_name']:<25}]"
        f" depth: {channel['depth']:<5}"
        f" be-depth: {channel['backend_depth']:<5}"
        f" inflt: {channel['in_flight_count']:<4}"
        f" def: {channel['deferred_count']:<4}"
        f" re-q: {channel['requeue_count']:<5}"
        f" timeout: {channel['timeout_count']:<5}"
        f" msgs: {channel['message_count']:<8}"
        f" e2e%: {_latency_text(channel['e2e_processing_latency'])}\n"
    )
    clients = channel["clients"] or []
    return line + "".join(f"        {_client_text(client, wall_ns)}\n" for client in clients)


def _producers_text(producers: list[ClientStatsJson], wall_ns: int) -> str:
    if not producers:
        return "\nProducers: None\n"
    lines = [f"   {_client_text(client, wall_ns)}\n" for client in producers]
    return "\nProducers:\n" + "".join(lines)


def _client_text(client: ClientStatsJson, wall_ns: int) -> str:
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    connected_ns = (wall_ns // SECOND_NS - client["connect_ts"]) * SECOND_NS
    counts = client.get("pub_counts")
    if counts:
        topics = ",".join(f"{each['topic']}={each['count']}" for each in counts)
        counts_text = f"msgs: {sum(each['count'] for each in counts):<8} topics: {topics}"
    else:
        counts_text = (
            f"state: {client['state']}"
            f" inflt: {client['in_flight_count']:<4}"
            f" rdy: {client['ready_count']:<4}"
            f" fin: {client['finish_count']:<8}"
            f" re-q: {client['requeue_count']:<8}"
            f" msgs: {client['message_count']:<8}"
        )
    return (
        f"[{client['version']} {name:<21}] {counts_text} connected: {format_duration(connected_ns)}"
    )


def _latency_text(latency: LatencyJson) -> str:
    return ", ".join(_format_latency(each["value"]) for each in latency["percentiles"] or [])


def _format_latency(value_ns: float) -> str:
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"


def _rfc3339(at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns // SECOND_NS, tz=UTC).astimezone()
    return at.isoformat().replace("+00:00", "Z")
