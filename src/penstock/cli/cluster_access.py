"""From the addresses on a command line to those who answer there.

Not for the head of a command's module: it brings asyncio, which `penstock --help` can do without.
"""

import asyncio

import click

from penstock.cli.command_options import NSQD_HTTP_ADDRESS, token_headers
from penstock.cluster.stats import Cluster
from penstock.errors import HttpRequestError
from penstock.webapi.client import HttpClient

__all__ = ["cluster_of", "http_client", "nodes_with_topic"]

CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 5.0


def http_client() -> HttpClient:
    """Patient enough for any node that is well."""
    return HttpClient(
        connect_timeout_seconds=CONNECT_SECONDS, request_timeout_seconds=REQUEST_SECONDS
    )


def cluster_of(nsqds: tuple[str, ...], lookupds: tuple[str, ...], token: str) -> Cluster:
    """The cluster at these addresses; without any, the nsqd on this machine."""
    return Cluster(
        http_client(),
        nsqds=nsqds if nsqds or lookupds else (NSQD_HTTP_ADDRESS,),
        lookupds=lookupds,
        headers=token_headers(token),
    )


def nodes_with_topic(
    topic: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], token: str
) -> list[str]:
    """The nodes that were named, and those that have the topic. Raises HttpRequestError if there
    are none."""
    addresses, failures = asyncio.run(cluster_of(nsqds, lookupds, token).addresses(topic))
    for failure in failures:
        click.echo(f"penstock: {failure}", err=True)
    if not addresses:
        raise HttpRequestError(lookupds[0], f"no node has topic {topic}")
    return addresses
