"""nsqd's TLS: the server context from its options, and the refusal of unencrypted HTTP."""

from penstock.net.http_server import Request, Response, json_response
from penstock.net.tls import ReloadableContext, configured_server_context
from penstock.nsqd.options import NsqdOptions

__all__ = ["TlsRequiredMiddleware", "server_tls"]


def server_tls(options: NsqdOptions) -> ReloadableContext | None:
    """The TLS context of TCP and HTTPS; None without a certificate. Raises ConfigError."""
    return configured_server_context(
        cert=options.tls_cert,
        key=options.tls_key,
        root_ca=options.tls_root_ca_file,
        client_auth_policy=options.tls_client_auth_policy,
        min_version=options.tls_min_version,
    )


class TlsRequiredMiddleware:
    """Middleware that refuses unencrypted HTTP requests, with the HTTPS port in the response."""

    def __init__(self) -> None:
        self.https_port = 0
        """To be set once HTTPS listens; 0 without HTTPS."""

    def __call__(self, request: Request) -> Response | None:
        if request.client.is_secure:
            return None
        # nsq compat: the spaces are NSQ's.
        return json_response(
            403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % self.https_port
        )
