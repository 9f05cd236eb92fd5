"""nsqd's TLS, as its options say: certificates, who may do without, and how they are renewed."""

from functools import partial

from penstock.common.errors import ConfigError
from penstock.net.http_server import Request, Response, json_response
from penstock.net.tls import ReloadableContext, server_context
from penstock.nsqd.options import NsqdOptions

__all__ = ["TlsRequiredMiddleware", "tls_of"]


def tls_of(options: NsqdOptions) -> ReloadableContext | None:
    """What encrypts our connections; None without a certificate. Raises ConfigError."""
    if not options.tls_cert:
        return None
    make = partial(
        server_context,
        cert=options.tls_cert,
        key=options.tls_key,
        root_ca=options.tls_root_ca_file,
        client_auth_policy=options.tls_client_auth_policy,
        min_version=options.tls_min_version,
    )
    try:
        return ReloadableContext(make)
    except ConfigError as error:
        raise ConfigError(f"failed to build TLS config - {error}") from error


class TlsRequiredMiddleware:
    """Refuses HTTP requests that are not encrypted, and tells where to take them."""

    def __init__(self) -> None:
        self.https_port = 0  # to be set when it is known; stays if there is none

    def __call__(self, request: Request) -> Response | None:
        if request.client.is_secure:
            return None
        # nsq compat: the spaces are the reference's.
        return json_response(
            403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % self.https_port
        )
