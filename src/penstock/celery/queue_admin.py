"""Count and purge the messages of a queue through nsqd's HTTP API; the TCP protocol has no commands
for it."""

from penstock.admin_api.cluster import Cluster, ClusterStats
from penstock.admin_api.models import InfoResponse
from penstock.admin_api.nsqd_api import api_url
from penstock.celery.settings import Settings
from penstock.client.addresses import host_and_port
from penstock.common.addresses import join_address
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.net.http_client.client import HttpClient

__all__ = ["count", "purge"]

REQUEST_SECONDS = 10.0


async def count(settings: Settings, queue: str) -> int:
    """Messages that wait in a queue, including deferred ones. Raises NotConnectedError."""
    try:
        stats = await (await _cluster(settings)).snapshot(settings.topic_of_queue(queue))
    except HttpRequestError as failure:
        raise _not_connected(failure) from None
    return _count_waiting(settings, stats)


async def purge(settings: Settings, queue: str) -> int:
    """Removes all messages of a queue, including those in flight, and returns the number of those
    that waited. Raises NotConnectedError."""
    topic, channel = settings.topic_of_queue(queue), settings.channel
    try:
        cluster = await _cluster(settings)
        stats = await cluster.snapshot(topic)
        for node in stats.nodes:
            for summary in node.topics:
                args = {"topic": topic}
                await cluster.http.call("POST", api_url(node.address, "/topic/empty", args))
                if summary.maybe_channel(channel) is not None:
                    args["channel"] = channel
                    await cluster.http.call("POST", api_url(node.address, "/channel/empty", args))
    except HttpRequestError as failure:
        raise _not_connected(failure) from None
    return _count_waiting(settings, stats)


def _count_waiting(settings: Settings, stats: ClusterStats) -> int:
    total = 0
    for node in stats.nodes:
        for topic in node.topics:
            total += topic.depth
            channel = topic.maybe_channel(settings.channel)
            if channel is not None:
                total += channel.depth + channel.deferred_count
    return total


async def _cluster(settings: Settings) -> Cluster:
    http = HttpClient(
        connect_timeout_seconds=settings.config.dial_timeout,
        request_timeout_seconds=REQUEST_SECONDS,
    )
    nsqds = list(settings.nsqd_http_addresses)
    if not nsqds:
        nsqds = [await _guess_http_address(http, address) for address in settings.nsqds]
    return Cluster(http, nsqds=nsqds, lookupds=settings.lookupds)


async def _guess_http_address(http: HttpClient, tcp_address: str) -> str:
    """The HTTP address of an nsqd whose HTTP port follows its TCP port, as the default ports do.

    Raises HttpRequestError if another nsqd answers there, so that its messages are not purged.
    """
    host, port = host_and_port(tcp_address) or ("", 0)
    guess = join_address(host, port + 1)
    info = await http.get_json(api_url(guess, "/info", {}), InfoResponse)
    if info.tcp_port != port:
        raise HttpRequestError(guess, f"it is not the nsqd at {tcp_address}")
    return guess


def _not_connected(failure: HttpRequestError) -> NotConnectedError:
    return NotConnectedError(
        f"nsqd's HTTP API is needed to count or purge messages: {failure}"
        " (broker_transport_options: nsqd_http_addresses)"
    )
