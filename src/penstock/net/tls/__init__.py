"""TLS, for both ends of a connection.

    layer       TlsLayer: a connection's TLS, between its transport and its protocol
    contexts    what a server or a client needs for it, from the files it is told
    suites      the names of cipher suites
    transport   over_tls: a listener's connections, each with TLS between

If the peer breaks TLS, penstock.common.errors.TlsError is raised; if our own files are invalid,
ConfigError.
"""

from penstock.net.tls.contexts import ReloadableContext, client_context, server_context
from penstock.net.tls.layer import TlsInfo, TlsLayer
from penstock.net.tls.transport import over_tls

__all__ = [
    "ReloadableContext",
    "TlsInfo",
    "TlsLayer",
    "client_context",
    "over_tls",
    "server_context",
]
