"""How many messages a queue has, and removing them: over nsqd's HTTP API, since TCP has no word for
it."""

import msgspec

from penstock.admin_api.stats import Cluster, Snapshot, base_url
from penstock.celery.settings import Settings
from penstock.client.addresses import host_and_port
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.net.http_client.client import HttpClient

__all__ = ["count", "purge"]

REQUEST_SECONDS = 10.0


class _Info(msgspec.Struct):
    tcp_port: int


async def count(settings: Settings, queue: str) -> int:
    """The messages that wait, deferred ones included. Raises NotConnectedError."""
    try:
        snapshot = await (await _cluster(settings)).snapshot(settings.topic_of_queue(queue))
    except HttpRequestError as failure:
        raise _needed(failure) from None
    return sum(_waiting(settings, snapshot).values())


async def purge(settings: Settings, queue: str) -> int:
    """Removes all messages of a queue, those that a worker has in hand too; how many have waited.
    Raises NotConnectedError."""
    topic = settings.topic_of_queue(queue)
    try:
        snapshot = await (await _cluster(settings)).snapshot(topic)
        http = _http(settings)
        for node in snapshot.nodes:
            for figures in node.topics:
                await http.call("POST", f"{base_url(node.address)}/topic/empty?topic={topic}")
                if figures.maybe_channel(settings.channel) is not None:
                    arguments = f"topic={topic}&channel={settings.channel}"
                    await http.call("POST", f"{base_url(node.address)}/channel/empty?{arguments}")
    except HttpRequestError as failure:
        raise _needed(failure) from None
    return sum(_waiting(settings, snapshot).values())


def _waiting(settings: Settings, snapshot: Snapshot) -> dict[str, int]:
    """By node."""
    counts = {}
    for node in snapshot.nodes:
        for figures in node.topics:
            channel = figures.maybe_channel(settings.channel)
            in_channel = channel.depth + channel.deferred_count if channel is not None else 0
            counts[node.address] = figures.depth + in_channel
    return counts


async def _cluster(settings: Settings) -> Cluster:
    nsqds = list(settings.nsqd_http_addresses)
    if not nsqds:
        nsqds = [await _neighbour(settings, address) for address in settings.nsqds]
    return Cluster(_http(settings), nsqds=nsqds, lookupds=settings.lookupds)


async def _neighbour(settings: Settings, address: str) -> str:
    """The HTTP address of the nsqd that has this one for TCP, if it is the usual one.

    Raises HttpRequestError if it is not: what is not known to be the same nsqd is not purged.
    """
    host, port = host_and_port(address) or ("", 0)
    guess = f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"
    info = await _http(settings).get_json(f"{base_url(guess)}/info", _Info)
    if info.tcp_port != port:
        raise HttpRequestError(guess, f"it is not the nsqd at {address}")
    return guess


def _http(settings: Settings) -> HttpClient:
    return HttpClient(
        connect_timeout_seconds=settings.config.dial_timeout,
        request_timeout_seconds=REQUEST_SECONDS,
    )


def _needed(failure: HttpRequestError) -> NotConnectedError:
    return NotConnectedError(
        f"nsqd's HTTP API is needed to count or purge messages: {failure}"
        " (broker_transport_options: nsqd_http_addresses)"
    )
