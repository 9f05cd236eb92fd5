"""Addresses and credentials of nsqd and nsqlookupd. Can be pickled, for the executors."""

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.admin_api.blocking_api import BlockingApi
from penstock.client.config import ClientConfig
from penstock.common.addresses import is_address
from penstock.common.errors import ConfigError
from penstock.net.http_client.blocking import BlockingHttpClient
from penstock.net.tls import client_context

__all__ = ["Access", "base_url"]

# Interval between two queries to a lookupd. The client's default, a minute, is too long here.
LOOKUPD_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`nsqds` and `lookupds` are base URLs of HTTP APIs."""

    nsqds: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    http_token: str = field(default="", repr=False)
    auth_secret: str = field(default="", repr=False)
    tls: bool = False
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False
    connect_seconds: float = 5.0
    request_seconds: float = 30.0

    def ssl_context(self) -> ssl.SSLContext:
        """Context for HTTPS. Raises ConfigError if a certificate or key file is invalid."""
        return client_context(
            root_ca=self.tls_root_ca_file,
            cert=self.tls_cert,
            key=self.tls_key,
            insecure_skip_verify=self.tls_insecure_skip_verify,
        )

    def http_api(self) -> BlockingApi:
        """Client of the HTTP APIs. Raises ConfigError if a certificate cannot be loaded."""
        has_own_tls = self.tls_root_ca_file or self.tls_cert or self.tls_insecure_skip_verify
        http = BlockingHttpClient(
            connect_timeout_seconds=self.connect_seconds,
            request_timeout_seconds=self.request_seconds,
            ssl_context=self.ssl_context() if has_own_tls else None,
        )
        return BlockingApi(http, self.http_token)

    def client_config(self) -> ClientConfig:
        """Configuration of the TCP client."""
        return ClientConfig(
            dial_timeout=self.connect_seconds,
            lookupd_poll_interval=LOOKUPD_SECONDS,
            auth_secret=self.auth_secret,
            tls_v1=self.tls,
            tls_root_ca_file=self.tls_root_ca_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_insecure_skip_verify=self.tls_insecure_skip_verify,
        )


def base_url(address: str) -> str:
    """Convert `host:port` or a URL to a base URL. Raises ConfigError for anything else."""
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not is_address(parts.netloc):
        raise ConfigError(f"invalid HTTP address (host:port): {address!r}")
    return f"{parts.scheme}://{parts.netloc}"
