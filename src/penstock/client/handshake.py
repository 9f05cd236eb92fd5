"""Negotiation of a client on each connection: IDENTIFY, TLS, compression, AUTH and SUB."""

import socket
import ssl
from collections.abc import Callable
from functools import partial

from penstock.client.addresses import host_and_port
from penstock.client.config import ClientConfig
from penstock.common import names
from penstock.common.errors import ConfigError
from penstock.net.tls import TlsLayer, client_context
from penstock.protocol.client import Opening
from penstock.protocol.compression import Deflate, Snappy

__all__ = ["HandshakeFor", "check_subscription", "consumer_handshake", "producer_handshake"]

HandshakeFor = Callable[[str], Opening]
"""Returns what to negotiate with the nsqd at an address."""

_OFF = -1

_TLS_VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def producer_handshake(config: ClientConfig, *, heartbeats: bool = True) -> HandshakeFor:
    """The handshake of a publishing connection. Without heartbeats, the client need not read it
    while it is idle. Raises ConfigError if a TLS file cannot be used."""
    features = _features(config)
    if not heartbeats:
        features["heartbeat_interval"] = _OFF
    return _handshake_for(config, features)


def consumer_handshake(config: ClientConfig, topic: str, channel: str) -> HandshakeFor:
    """The handshake of a subscribing connection. Raises ConfigError if a TLS file cannot be
    used."""
    features = _features(config) | {
        "output_buffer_size": config.output_buffer_size,
        "output_buffer_timeout": round(config.output_buffer_timeout * 1000),
        "sample_rate": config.sample_rate,
        "msg_timeout": round(config.msg_timeout * 1000),
    }
    return _handshake_for(config, features, topic, channel)


def check_subscription(topic: str, channel: str) -> None:
    """Raises ConfigError if a name is invalid."""
    for noun, name in (("topic", topic), ("channel", channel)):
        if not names.is_valid(name):
            raise ConfigError(f"{noun} name {name!r} is not valid")


def _features(config: ClientConfig) -> dict[str, object]:
    hostname = config.hostname or socket.gethostname()
    return {
        "client_id": config.client_id or hostname.partition(".")[0],
        "hostname": hostname,
        "user_agent": config.user_agent,
        "heartbeat_interval": round(config.heartbeat_interval * 1000),
        "tls_v1": config.tls_v1,
        "snappy": config.snappy,
        "deflate": config.deflate,
        "deflate_level": config.deflate_level,
    }


def _handshake_for(
    config: ClientConfig, features: dict[str, object], topic: str = "", channel: str = ""
) -> HandshakeFor:
    context = _tls_context(config) if config.tls_v1 else None

    def handshake_for(address: str) -> Opening:
        return Opening(
            features=features,
            auth_secret=config.auth_secret.encode(),
            topic=topic,
            channel=channel,
            make_tls=None if context is None else partial(_tls_layer, context, address),
            make_compression={"snappy": lambda _level: Snappy(), "deflate": Deflate},
        )

    return handshake_for


def _tls_context(config: ClientConfig) -> ssl.SSLContext:
    return client_context(
        root_ca=config.tls_root_ca_file,
        cert=config.tls_cert,
        key=config.tls_key,
        insecure_skip_verify=config.tls_insecure_skip_verify,
        min_version=_TLS_VERSIONS[config.tls_min_version.lower()],
    )


def _tls_layer(context: ssl.SSLContext, address: str) -> TlsLayer:
    host, _ = host_and_port(address) or ("localhost", 0)
    return TlsLayer(context, server_side=False, server_hostname=host)
