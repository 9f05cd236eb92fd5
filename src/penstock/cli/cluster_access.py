"""HTTP clients and cluster views for the addresses of a command line, and shell completion of topic
and channel names.

Import this module inside functions: it loads asyncio, which would slow down `penstock --help`.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import Any

import click

from penstock.admin_api.cluster import Cluster, ClusterStats
from penstock.cli.command_options import NSQD_HTTP_ADDRESS, HttpAccess, token_headers
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.net.tls import client_context

__all__ = [
    "build_cluster",
    "build_http_client",
    "build_tls_context",
    "complete_channels",
    "complete_topics",
    "find_nodes_with_topic",
]

CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 5.0


def build_tls_context(access: HttpAccess) -> ssl.SSLContext | None:
    """The TLS context for these credentials; None if no TLS option is set. Raises ConfigError."""
    cert, key, root_ca = access.tls_cert, access.tls_key, access.tls_root_ca_file
    if key and not cert:
        raise click.UsageError("--tls-key requires --tls-cert")
    return client_context(root_ca=root_ca, cert=cert, key=key) if cert or root_ca else None


def build_http_client(access: HttpAccess) -> HttpClient:
    """The HTTP client for these credentials. Raises ConfigError if a TLS file cannot be used."""
    return HttpClient(
        connect_timeout_seconds=CONNECT_SECONDS,
        request_timeout_seconds=REQUEST_SECONDS,
        ssl_context=build_tls_context(access),
    )


def build_cluster(nsqds: tuple[str, ...], lookupds: tuple[str, ...], access: HttpAccess) -> Cluster:
    """The cluster at these addresses; without addresses, the nsqd on this machine. Raises
    ConfigError if a TLS file cannot be used."""
    return Cluster(
        build_http_client(access),
        nsqds=nsqds if nsqds or lookupds else (NSQD_HTTP_ADDRESS,),
        lookupds=lookupds,
        headers=access.headers,
    )


def find_nodes_with_topic(
    topic: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], access: HttpAccess
) -> list[str]:
    """The given nsqds, and those that have the topic according to nsqlookupds. Raises
    HttpRequestError if there are none."""
    addresses, failures = asyncio.run(build_cluster(nsqds, lookupds, access).addresses(topic))
    for failure in failures:
        click.echo(f"penstock: {failure}", err=True)
    if not addresses:
        raise HttpRequestError(lookupds[0], f"no node has topic {topic}")
    return addresses


COMPLETION_SECONDS = 1.0


def complete_topics(params: Mapping[str, Any], *, by_http: bool) -> list[str]:
    """All topics. `params` are the options on the command line so far; `by_http` says whether their
    nsqd addresses are HTTP addresses. Empty if no node answers within a second."""
    topics = (topic for node in _snapshot(params, by_http).nodes for topic in node.topics)
    return sorted({topic.topic_name for topic in topics})


def complete_channels(params: Mapping[str, Any], *, by_http: bool) -> list[str]:
    """All channels of the topic in `params`."""
    wanted = params.get("topic")
    topics = (topic for node in _snapshot(params, by_http).nodes for topic in node.topics)
    channels = (each for topic in topics if topic.topic_name == wanted for each in topic.channels)
    return sorted({channel.channel_name for channel in channels})


def _snapshot(params: Mapping[str, Any], by_http: bool) -> ClusterStats:
    http = HttpClient(
        connect_timeout_seconds=COMPLETION_SECONDS / 2, request_timeout_seconds=COMPLETION_SECONDS
    )
    lookupds = params.get("lookupds") or ()
    nsqds = params.get("nsqds") or () if by_http else ()
    if not nsqds and not lookupds:
        nsqds = os.environ.get("PENSTOCK_NSQD_HTTP_ADDRESS", NSQD_HTTP_ADDRESS).split()
    token = params.get("token") or os.environ.get("PENSTOCK_HTTP_TOKEN", "")
    cluster = Cluster(http, nsqds=nsqds, lookupds=lookupds, headers=token_headers(token))
    try:
        return asyncio.run(cluster.snapshot())
    except HttpRequestError:
        return ClusterStats(0.0, [], [])
