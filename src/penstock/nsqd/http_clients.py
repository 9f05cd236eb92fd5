"""TCP clients over HTTP: sending one away. NSQ has no such endpoint.

A client is named as /stats shows it: by the address it comes from and, lest whoever has the same
address next is taken for it, by when it connected.
"""

from collections.abc import Iterable
from typing import Protocol

from penstock.common.clock import SECOND_NS
from penstock.net.http_server import HttpError, Request, Route
from penstock.nsqd.history_args import count_arg
from penstock.nsqd.http_args import required

__all__ = ["ClientEndpoints", "ConnectedClient"]


class ConnectedClient(Protocol):
    """A connection that can be ended."""

    remote_address: str
    connected_at_ns: int

    def kick(self) -> None:
        """Closes at once, and gives back what it has in flight."""


class ClientEndpoints:
    """The endpoint, and the table of it."""

    def __init__(self, clients: Iterable[ConnectedClient]) -> None:
        self._clients = clients

    def routes(self) -> list[Route]:
        """The table."""
        return [Route("POST", "/client/close", self._close)]

    def _close(self, request: Request) -> None:
        address = required(request.args, "remote_address")
        since = count_arg(request.args, "connect_ts")
        found = [
            each
            for each in self._clients
            if each.remote_address == address and since in (None, each.connected_at_ns // SECOND_NS)
        ]
        if not found:
            raise HttpError(404, "CLIENT_NOT_FOUND")
        if len(found) > 1:  # on a unix socket nobody has an address
            raise HttpError(409, "CLIENT_NOT_UNIQUE")
        found[0].kick()
