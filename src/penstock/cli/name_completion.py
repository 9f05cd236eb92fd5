"""Names of topics and channels for a shell that completes them: those that there are just now.

Asked for while somebody waits at a prompt, so it takes a moment at most, and failing is no error:
then there is nothing to offer.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from penstock.admin_api.cluster import Cluster, ClusterStats
from penstock.cli.command_options import NSQD_HTTP_ADDRESS, token_headers
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.client import HttpClient

__all__ = ["known_channels", "known_topics"]

PATIENCE_SECONDS = 1.0


def known_topics(params: Mapping[str, Any], *, by_http: bool) -> list[str]:
    """All topics; `params` are those on the command line so far, and `by_http` says whether the
    addresses among them are of HTTP."""
    topics = (topic for node in _snapshot(params, by_http).nodes for topic in node.topics)
    return sorted({topic.topic_name for topic in topics})


def known_channels(params: Mapping[str, Any], *, by_http: bool) -> list[str]:
    """All channels of the topic that is among the `params`."""
    wanted = params.get("topic")
    topics = (topic for node in _snapshot(params, by_http).nodes for topic in node.topics)
    channels = (each for topic in topics if topic.topic_name == wanted for each in topic.channels)
    return sorted({channel.channel_name for channel in channels})


def _snapshot(params: Mapping[str, Any], by_http: bool) -> ClusterStats:
    http = HttpClient(
        connect_timeout_seconds=PATIENCE_SECONDS / 2, request_timeout_seconds=PATIENCE_SECONDS
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
