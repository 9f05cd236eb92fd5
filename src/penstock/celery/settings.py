"""From what Celery is configured with to what the transport works with.

    nsq://127.0.0.1:4150                 one nsqd
    nsq://10.0.0.1:4150;nsq://10.0.0.2   several: all are consumed, any is published to
    nsq+lookupd://10.0.0.1:4161          those that a lookupd knows
    nsqs://:secret@10.0.0.1:4150         with TLS, and a secret for AUTH

`broker_transport_options` has the rest: those named in `Settings`, and all of `ClientConfig`.
"""

import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from penstock.celery.naming import ephemeral, nsq_name
from penstock.celery.registration import SCHEMES
from penstock.client import ClientConfig
from penstock.client.addresses import parse_addresses, parse_lookupds
from penstock.common.errors import ConfigError
from penstock.common.names import is_valid

__all__ = ["Settings", "masked", "settings_of"]

log = logging.getLogger("penstock.celery")

_PORTS = {"nsq": 4150, "nsqs": 4150, "nsq+lookupd": 4161, "nsqs+lookupd": 4161}

# kombu retries a publish as the application wants it; this is for one attempt of those.
PUBLISH_TIMEOUT_SECONDS = 5.0

# Options that are not ours: kombu's own, and those of other brokers in a shared configuration.
_FOREIGN = frozenset(
    {
        "body_encoding",
        "client_properties",
        "confirm_publish",
        "confirm_timeout",
        "connect_retries_timeout",
        "deadletter_queue",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "polling_interval",
        "visibility_timeout",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the nsqds are, how they are spoken to, and what things are called there."""

    nsqds: Sequence[str]
    lookupds: Sequence[str]
    config: ClientConfig
    channel: str = "celery"
    """Of a queue's topic; all workers share it."""
    queue_name_prefix: str = ""
    """Before the name of every topic."""
    max_defer: float = 3600.0
    """The longest that nsqd is asked to defer a message, in seconds: its `--max-req-timeout`."""
    nsqd_http_addresses: Sequence[str] = ()
    """For counting and purging; otherwise the port after that of TCP is tried."""

    def topic_of_queue(self, queue: str) -> str:
        return nsq_name(self.queue_name_prefix + queue)

    def topic_of_exchange(self, exchange: str) -> str:
        """Where messages go that are for whoever listens now."""
        return ephemeral(self.queue_name_prefix + exchange)


_OWN_OPTIONS = frozenset({"channel", "queue_name_prefix", "max_defer", "nsqd_http_addresses"})
_CLIENT_OPTIONS = frozenset(field.name for field in fields(ClientConfig))


def settings_of(
    urls: Sequence[str],
    *,
    use_ssl: bool | Mapping[str, Any] | None = None,
    connect_timeout: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Raises ConfigError if they make no sense."""
    options = options or {}
    parts = [_split(url) for url in urls]
    secure = {each.scheme.startswith("nsqs") for each in parts}
    secrets = {unquote(each.password) for each in parts if each.password}
    if len(secure) > 1 or len(secrets) > 1:
        raise ConfigError("all URLs of a broker have to agree on TLS and on the password")
    config = ClientConfig(
        publish_timeout=PUBLISH_TIMEOUT_SECONDS,
        dial_timeout=connect_timeout or ClientConfig().dial_timeout,
        auth_secret=next(iter(secrets), ""),
        output_buffer_timeout=0.025,  # a task that is alone should not wait long for company
        **_tls(is_secure=True in secure, use_ssl=use_ssl),
    )
    lookupds = [_address(each) for each in parts if each.scheme.endswith("lookupd")]
    lookupds += _listed(options.get("lookupd_http_addresses", ()))
    # A bare "nsq://" means the nsqd of this host, unless there are lookupds to ask.
    nsqds = [
        _address(each)
        for each in parts
        if not each.scheme.endswith("lookupd") and (each.hostname or not lookupds)
    ]
    return _checked(
        replace(
            Settings(
                nsqds=parse_addresses(nsqds), lookupds=parse_lookupds(lookupds), config=config
            ),
            **_own(options),
            config=replace(config, **_for_client(options)),
        )
    )


def masked(url: str, mask: str) -> str:
    """The URL without its password, to be shown."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{mask}@{place}"))


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 (it is judged when it is asked for)
    except ValueError as problem:
        raise ConfigError(f"{masked(url, '**')}: {problem}") from None
    if parts.scheme not in SCHEMES or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(f"not an NSQ broker (nsq://host:port): {masked(url, '**')}")
    return parts


def _address(parts: SplitResult) -> str:
    host = parts.hostname or "127.0.0.1"
    port = parts.port or _PORTS[parts.scheme]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(*, is_secure: bool, use_ssl: bool | Mapping[str, Any] | None) -> dict[str, Any]:
    """Options are called as in `ssl.wrap_socket`, also with Redis' `ssl_` before them."""
    if not is_secure and not use_ssl:
        return {}
    given = use_ssl if isinstance(use_ssl, Mapping) else {}
    named = {name.removeprefix("ssl_"): value for name, value in given.items()}
    unverified = (ssl.CERT_NONE, "none", "CERT_NONE")
    return {
        "tls_v1": True,
        "tls_root_ca_file": named.get("ca_certs") or "",
        "tls_cert": named.get("certfile") or "",
        "tls_key": named.get("keyfile") or "",
        "tls_insecure_skip_verify": named.get("cert_reqs") in unverified,
    }


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: options[name] for name in _OWN_OPTIONS & options.keys()}
    if "nsqd_http_addresses" in own:
        own["nsqd_http_addresses"] = _listed(own["nsqd_http_addresses"])
    return own


def _for_client(options: Mapping[str, Any]) -> dict[str, Any]:
    known = _OWN_OPTIONS | _CLIENT_OPTIONS | _FOREIGN | {"lookupd_http_addresses"}
    for name in options.keys() - known:
        log.warning("broker_transport_options: %s means nothing to NSQ", name)
    return {name: options[name] for name in _CLIENT_OPTIONS & options.keys()}


def _listed(addresses: str | Sequence[str]) -> list[str]:
    return [addresses] if isinstance(addresses, str) else list(addresses)


def _checked(settings: Settings) -> Settings:
    if not is_valid(settings.channel):
        raise ConfigError(f"channel name {settings.channel!r} is not valid")
    if settings.max_defer <= 0:
        raise ConfigError(f"max_defer must be positive: {settings.max_defer}")
    return settings
