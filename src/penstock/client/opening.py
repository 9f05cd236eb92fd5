"""From a client's configuration to what is negotiated on each of its connections."""

import socket

from penstock import names
from penstock.client.config import ClientConfig
from penstock.errors import ConfigError
from penstock.wire.client import Opening
from penstock.wire.deflate import Deflate
from penstock.wire.snappy import Snappy

__all__ = ["checked_subscription", "consumer_opening", "producer_opening"]

_OFF = -1


def producer_opening(config: ClientConfig, *, heartbeats: bool = True) -> Opening:
    """For a connection that publishes. Without heartbeats it may be left alone for any time."""
    features = _features(config)
    if not heartbeats:
        features["heartbeat_interval"] = _OFF
    return _opening(config, features)


def consumer_opening(config: ClientConfig, topic: str, channel: str) -> Opening:
    """For a connection that subscribes."""
    features = _features(config) | {
        "output_buffer_size": config.output_buffer_size,
        "output_buffer_timeout": round(config.output_buffer_timeout * 1000),
        "sample_rate": config.sample_rate,
        "msg_timeout": round(config.msg_timeout * 1000),
    }
    return _opening(config, features, topic, channel)


def checked_subscription(topic: str, channel: str) -> None:
    """Raises ConfigError if these cannot be names."""
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


def _opening(
    config: ClientConfig, features: dict[str, object], topic: str = "", channel: str = ""
) -> Opening:
    return Opening(
        features=features,
        auth_secret=config.auth_secret.encode(),
        topic=topic,
        channel=channel,
        make_compression={"snappy": lambda _level: Snappy(), "deflate": Deflate},
    )
