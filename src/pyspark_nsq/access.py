"""Where the nsqds and lookupds are, and what they want to see before they answer.

A value that can be pickled: what the driver was told is what its executors go by.
"""

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.client.config import ClientConfig
from penstock.common.addresses import is_address
from penstock.common.errors import ConfigError
from penstock.net.tls import client_context

__all__ = ["Access", "base_url"]

# Between two questions to a lookupd. A stream of batches should not wait a minute for a node.
LOOKUPD_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`nsqds` and `lookupds` are base URLs of their HTTP APIs."""

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
        """For HTTPS. Raises ConfigError if there is something wrong with the files."""
        return client_context(
            root_ca=self.tls_root_ca_file,
            cert=self.tls_cert,
            key=self.tls_key,
            insecure_skip_verify=self.tls_insecure_skip_verify,
        )

    def client_config(self) -> ClientConfig:
        """For TCP."""
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
    """Of `host:port`, or of a URL as it is. Raises ConfigError if it is neither."""
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not is_address(parts.netloc):
        raise ConfigError(f"not the address of an HTTP API (host:port): {address!r}")
    return f"{parts.scheme}://{parts.netloc}"
