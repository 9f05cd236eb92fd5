"""TCP keep-alive: how a peer that vanished without a word is found out."""

import asyncio
import socket

__all__ = ["keep_alive"]

# As Go's servers have it: a peer whose kernel does not answer our probes is given up in minutes.
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 9


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Probes the peer while nothing comes from it; one on a unix socket needs no probing."""
    connection = transport.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the system's own times have to do
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
