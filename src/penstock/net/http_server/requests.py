"""A request, as an endpoint sees it."""

from typing import Protocol

from msgspec import Struct

from penstock.net.http_server.errors import HttpError
from penstock.net.http_server.head import Head

__all__ = ["Peer", "Request"]


class Peer(Protocol):
    """What sent a request."""

    @property
    def address(self) -> str:
        """`host:port`, or `@` on a unix socket."""

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""


class Request(Struct, frozen=True, eq=False):
    """One request with its whole body."""

    head: Head
    params: dict[str, str]  # of the path: `/config/:opt` has `opt`
    body: bytes
    peer: Peer

    @property
    def method(self) -> str:
        """As sent; methods are case-sensitive."""
        return self.head.line.method

    @property
    def path(self) -> str:
        """Decoded, without the query."""
        return self.head.line.path

    @property
    def args(self) -> dict[str, str]:
        """The arguments of the query string; of a repeated one, the first. Not to be changed.

        Raises HttpError 400 INVALID_REQUEST if the query cannot be decoded.
        """
        args = self.head.line.args
        if args is None:
            raise HttpError(400, "INVALID_REQUEST")
        return args

    def header(self, name: str) -> str | None:
        """The value of the header with this name, in any case; of a repeated one, all of them."""
        value = self.head.headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")
