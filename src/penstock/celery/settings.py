"""Settings of the transport, from the broker URLs and `broker_transport_options` of Celery, and the
names of queues and exchanges in NSQ.

    nsq://127.0.0.1:4150                 one nsqd
    nsq://10.0.0.1:4150;nsq://10.0.0.2   several: consumes from all, publishes to any
    nsq+lookupd://10.0.0.1:4161          the nsqds that an nsqlookupd lists
    nsqs://:secret@10.0.0.1:4150         with TLS, and a secret for AUTH

`broker_transport_options` accepts the fields of `Settings` and of `ClientConfig`.

Valid NSQ names stay unchanged. In other names, each byte that NSQ does not allow, and a hyphen
before an `x`, is written as `-x` and two hex digits, so that names stay distinct:
`celery@web1.celery.pidbox` becomes `celery-x40web1.celery.pidbox`. A name that is then too long is
truncated and ends with a hash of the full name.
"""

import hashlib
import logging
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from penstock.celery.registration import SCHEMES
from penstock.client import ClientConfig
from penstock.client.addresses import parse_addresses, parse_lookupds
from penstock.common.errors import ConfigError
from penstock.common.names import EPHEMERAL_SUFFIX, NAME_BYTES_MAX, is_valid

__all__ = ["Settings", "ephemeral_name", "masked", "nsq_name", "settings_of"]

log = logging.getLogger("penstock.celery")

_PORTS = {"nsq": 4150, "nsqs": 4150, "nsq+lookupd": 4161, "nsqs+lookupd": 4161}

# For one attempt; kombu retries a publish as configured by the application.
PUBLISH_TIMEOUT_SECONDS = 5.0

# Ignored options: those of kombu, and of other brokers in a shared configuration.
_IGNORED_OPTIONS = frozenset(
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
    """Addresses, client settings and names."""

    nsqds: Sequence[str]
    lookupds: Sequence[str]
    config: ClientConfig
    channel: str = "celery"
    """Channel of every queue's topic, shared by all workers."""
    queue_name_prefix: str = ""
    """Prefix of all topic names."""
    max_defer: float = 3600.0
    """Maximum time to defer a message, in seconds: nsqd's `--max-req-timeout`."""
    nsqd_http_addresses: Sequence[str] = ()
    """HTTP addresses for counting and purging. Default: the port after the TCP port."""

    def topic_of_queue(self, queue: str) -> str:
        return nsq_name(self.queue_name_prefix + queue)

    def topic_of_exchange(self, exchange: str) -> str:
        """The ephemeral topic for messages to the current subscribers of an exchange."""
        return ephemeral_name(self.queue_name_prefix + exchange)


_OWN_OPTIONS = frozenset({"channel", "queue_name_prefix", "max_defer", "nsqd_http_addresses"})
_CLIENT_OPTIONS = frozenset(field.name for field in fields(ClientConfig))


def settings_of(
    urls: Sequence[str],
    *,
    use_ssl: bool | Mapping[str, Any] | None = None,
    connect_timeout: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Parse the configuration of Celery. Raises ConfigError if it is invalid."""
    options = options or {}
    parts = [_split(url) for url in urls]
    secure = {each.scheme.startswith("nsqs") for each in parts}
    secrets = {unquote(each.password) for each in parts if each.password}
    if len(secure) > 1 or len(secrets) > 1:
        raise ConfigError(
            "all broker URLs must have the same password, and all or none must use TLS"
        )
    config = ClientConfig(
        publish_timeout=PUBLISH_TIMEOUT_SECONDS,
        dial_timeout=connect_timeout or ClientConfig().dial_timeout,
        auth_secret=next(iter(secrets), ""),
        output_buffer_timeout=0.025,  # deliver a single task without a long wait for others
        **_tls(is_secure=True in secure, use_ssl=use_ssl),
    )
    lookupds = [_address(each) for each in parts if each.scheme.endswith("lookupd")]
    lookupds += _listed(options.get("lookupd_http_addresses", ()))
    # "nsq://" without a host means the local nsqd, unless nsqlookupds are given.
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
    """The URL with its password masked."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{mask}@{place}"))


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 (the property validates the port)
    except ValueError as problem:
        raise ConfigError(f"{masked(url, '**')}: {problem}") from None
    if parts.scheme not in SCHEMES or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(f"not an NSQ broker URL (nsq://host:port): {masked(url, '**')}")
    return parts


def _address(parts: SplitResult) -> str:
    host = parts.hostname or "127.0.0.1"
    port = parts.port or _PORTS[parts.scheme]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(*, is_secure: bool, use_ssl: bool | Mapping[str, Any] | None) -> dict[str, Any]:
    """Option names are those of `ssl.wrap_socket`, optionally with the prefix `ssl_`."""
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
    known = _OWN_OPTIONS | _CLIENT_OPTIONS | _IGNORED_OPTIONS | {"lookupd_http_addresses"}
    for name in options.keys() - known:
        log.warning("broker_transport_options: unknown option %s", name)
    return {name: options[name] for name in _CLIENT_OPTIONS & options.keys()}


def _listed(addresses: str | Sequence[str]) -> list[str]:
    return [addresses] if isinstance(addresses, str) else list(addresses)


def _checked(settings: Settings) -> Settings:
    if not is_valid(settings.channel):
        raise ConfigError(f"channel name {settings.channel!r} is not valid")
    if settings.max_defer <= 0:
        raise ConfigError(f"max_defer must be positive: {settings.max_defer}")
    return settings


_INVALID_BYTES = re.compile(rb"[^.a-zA-Z0-9_-]|-(?=x)")

_HASH_DIGITS = 16
_HASH_MARK = "-h"


def nsq_name(name: str) -> str:
    """The NSQ name of a queue or an exchange."""
    return _shorten(_escape(name), NAME_BYTES_MAX)


def ephemeral_name(name: str) -> str:
    """The ephemeral NSQ name of a queue or an exchange."""
    return _shorten(_escape(name), NAME_BYTES_MAX - len(EPHEMERAL_SUFFIX)) + EPHEMERAL_SUFFIX


def _escape(name: str) -> str:
    return _INVALID_BYTES.sub(lambda found: b"-x%02x" % ord(found[0]), name.encode()).decode()


def _shorten(name: str, length_max: int) -> str:
    if len(name) <= length_max:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return name[: length_max - len(_HASH_MARK) - _HASH_DIGITS] + _HASH_MARK + digest
