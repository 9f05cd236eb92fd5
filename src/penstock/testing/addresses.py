"""Addresses for daemons that restart on the same port."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["reserved_address"]


@contextmanager
def reserved_address(port: int = 0) -> Iterator[str]:
    """Reserve a port of 127.0.0.1 until the block ends; yields host:port. Raises OSError if `port`
    is in use.

    The kernel may give a free port to any process that requests one. A bound port is not given
    away, but a process that requests exactly this port can listen on it. Until then, connections
    are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        host, bound_port = holder.getsockname()
        yield f"{host}:{bound_port}"
