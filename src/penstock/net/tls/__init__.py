"""TLS for both ends of a connection.

    contexts    SSL contexts from certificate files; reloadable ones
    connection  TlsLayer: TLS of one connection without I/O; wrap_in_tls: TLS for a listener

If the peer breaks TLS, TlsError is raised; if a file is invalid, ConfigError.
"""

from penstock.net.tls.connection import TlsInfo, TlsLayer, wrap_in_tls
from penstock.net.tls.contexts import (
    ReloadableContext,
    client_context,
    configured_server_context,
    server_context,
)

__all__ = [
    "ReloadableContext",
    "TlsInfo",
    "TlsLayer",
    "client_context",
    "configured_server_context",
    "server_context",
    "wrap_in_tls",
]
