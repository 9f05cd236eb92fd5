"""Addresses for daemons that have to come back where they were."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["reserved_address"]


@contextmanager
def reserved_address(port: int = 0) -> Iterator[str]:
    """A host:port of this machine, for whoever is told of it, until the block is left. Raises
    OSError if it is this very port that is asked for, and somebody has it.

    A port that was merely free a moment ago, or that a daemon had before it ended, is given to the
    next process that asks for any. One that is bound is not, and whoever asks for this very one can
    still listen on it, as long as nobody else does. Until then, connections are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        host, bound_port = holder.getsockname()
        yield f"{host}:{bound_port}"
