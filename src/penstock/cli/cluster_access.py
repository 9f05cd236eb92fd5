"""From the addresses on a command line to those who answer there.

Not for the head of a command's module: it brings asyncio, which `penstock --help` can do without.
"""

import asyncio
import ssl

import click

from penstock.admin_api.cluster import Cluster
from penstock.cli.command_options import NSQD_HTTP_ADDRESS, HttpAccess
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient
from penstock.net.tls import client_context

__all__ = ["cluster_of", "http_client", "nodes_with_topic", "tls_context"]

CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 5.0


def http_client(access: HttpAccess) -> HttpClient:
    """Patient enough for any node that is well. Raises ConfigError."""
    return HttpClient(
        connect_timeout_seconds=CONNECT_SECONDS,
        request_timeout_seconds=REQUEST_SECONDS,
        ssl_context=tls_context(access),
    )


def tls_context(access: HttpAccess) -> ssl.SSLContext | None:
    """For nsqds that want TLS; None if nothing was said of it. Raises ConfigError."""
    cert, key, root_ca = access.tls_cert, access.tls_key, access.tls_root_ca_file
    if key and not cert:
        raise click.UsageError("--tls-key needs a --tls-cert")
    return client_context(root_ca=root_ca, cert=cert, key=key) if cert or root_ca else None


def cluster_of(nsqds: tuple[str, ...], lookupds: tuple[str, ...], access: HttpAccess) -> Cluster:
    """The cluster at these addresses; without any, the nsqd on this machine."""
    return Cluster(
        http_client(access),
        nsqds=nsqds if nsqds or lookupds else (NSQD_HTTP_ADDRESS,),
        lookupds=lookupds,
        headers=access.headers,
    )


def nodes_with_topic(
    topic: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...], access: HttpAccess
) -> list[str]:
    """The nodes that were named, and those that have the topic. Raises HttpRequestError if there
    are none."""
    addresses, failures = asyncio.run(cluster_of(nsqds, lookupds, access).addresses(topic))
    for failure in failures:
        click.echo(f"penstock: {failure}", err=True)
    if not addresses:
        raise HttpRequestError(lookupds[0], f"no node has topic {topic}")
    return addresses
