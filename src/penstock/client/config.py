"""Settings of producers and consumers, in one dataclass that can be pickled and compared.

Names and defaults are those of NSQ's Go client, so `--consumer-opt` means the same here. Times are
in seconds. A field whose default differs from the Go client's says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock import __version__
from penstock.common.durations import parse_duration
from penstock.common.errors import ConfigError
from penstock.common.option_types import join_alternatives

__all__ = ["ClientConfig", "parse_option"]

_CHOICES = {
    "backoff_strategy": ("exponential", "full_jitter"),
    "tls_min_version": ("", "tls1.0", "tls1.1", "tls1.2", "tls1.3"),
}
_POSITIVE = ("max_in_flight", "max_batches_in_flight", "max_queued_bytes", "read_timeout")
_SAMPLE_RATE_MAX = 99

_TRUE, _FALSE = frozenset({"true", "t", "1", ""}), frozenset({"false", "f", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a producer or a consumer. Raises ConfigError if a value is invalid."""

    # Connecting.
    dial_timeout: float = 1.0
    """Timeout of the TCP connect."""
    read_timeout: float = 60.0
    """A connection that receives nothing for this long is closed. Must exceed
    `heartbeat_interval`."""
    write_timeout: float = 10.0
    """A connection whose sent data nsqd does not read for this long is closed. (Go client: 1 s,
    for a single write.)"""
    response_timeout: float = 10.0
    """Timeout of nsqd's response to a command. (Go client: none.)"""
    reconnect_delay_max: float = 15.0
    """Longest delay between attempts to reconnect. The first is 0.1 s; each doubles."""
    local_addr: str = ""
    """Local address to connect from."""

    # Identification.
    client_id: str = ""
    """Default: the first part of the hostname."""
    hostname: str = ""
    """Default: the hostname of this machine."""
    user_agent: str = f"penstock/{__version__}"
    heartbeat_interval: float = 30.0
    auth_secret: str = ""

    # Discovery of nsqds.
    lookupd_poll_interval: float = 60.0
    lookupd_poll_jitter: float = 0.3
    lookupd_poll_timeout: float = 60.0
    skip_lookupd_authorization: bool = False
    """If False, `auth_secret` is sent to nsqlookupds as a bearer token."""

    # The transport.
    tls_v1: bool = False
    tls_root_ca_file: str = ""
    tls_insecure_skip_verify: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_min_version: str = ""
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6

    # Consuming.
    max_in_flight: int = 200
    """Maximum unanswered messages over all connections. (Go client: 1; its tools: 200.)"""
    msg_timeout: float = 0.0
    """0: nsqd's default."""
    sample_rate: int = 0
    """Percentage of messages to deliver; 0 for all. The channel drops the others."""
    output_buffer_size: int = 16 * 1024
    output_buffer_timeout: float = 0.25
    max_attempts: int = 5
    """0: no limit."""
    default_requeue_delay: float = 90.0
    """Requeue delay of a failed message, multiplied by its attempts."""
    max_requeue_delay: float = 15 * 60.0
    backoff_strategy: str = "exponential"
    """`exponential` or `full_jitter`."""
    backoff_multiplier: float = 1.0
    max_backoff_duration: float = 2 * 60.0
    """0: no backoff."""
    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0
    rdy_redistribute_interval: float = 5.0
    close_timeout: float = 30.0
    """How long a stopped consumer waits for running handlers."""

    # Publishing.
    publish_timeout: float = 30.0
    """Timeout of a publish, including all retries."""
    max_batch_size: int = 256 * 1024
    """Maximum bytes per MPUB; a larger message is sent alone. nsqd's own limit is
    `--max-body-size`."""
    max_batches_in_flight: int = 8
    """Maximum unconfirmed publish commands per connection."""
    max_queued_bytes: int = 64 * 1024 * 1024
    """Maximum unconfirmed bytes; above it, `publish` waits."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_value(field.name, getattr(self, field.name))
        if self.snappy and self.deflate:
            raise ConfigError("snappy and deflate cannot both be enabled")
        if self.read_timeout <= self.heartbeat_interval:
            raise ConfigError("read_timeout must be longer than heartbeat_interval")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key must be set together")

    def with_options(self, options: Iterable[str]) -> "ClientConfig":
        """A copy with options in the form of `--consumer-opt`: `name,value`, or `name` for true.

        `-` is accepted for `_`; times have Go's form (`1m30s`). Raises ConfigError.
        """
        changes: dict[str, Any] = dict(map(parse_option, options))
        return replace(self, **changes)


_FIELD_TYPES = {field.name: type(field.default) for field in fields(ClientConfig)}


def parse_option(option: str) -> tuple[str, object]:
    """Parse `name,value`, or `name` for true. Returns field name and value. Raises ConfigError if
    the name is unknown or the value is invalid."""
    key, _, text = option.partition(",")
    name = key.strip().replace("-", "_")
    kind = _FIELD_TYPES.get(name)
    if kind is None:
        raise ConfigError(f"unknown option {key!r}")
    try:
        value = _parse_value(name, kind, text.strip())
    except ValueError:
        raise ConfigError(f"invalid value of option {name}: {text!r}") from None
    _check_value(name, value)
    return name, value


def _check_value(name: str, value: object) -> None:
    """Raises ConfigError if the value of a field is invalid regardless of other fields."""
    if isinstance(value, int | float) and value < 0:
        raise ConfigError(f"{name} must not be negative: {value}")
    if name in _POSITIVE and not value:
        raise ConfigError(f"{name} must be positive")
    if name == "sample_rate" and isinstance(value, int) and value > _SAMPLE_RATE_MAX:
        raise ConfigError(f"sample_rate must be a percentage from 0 to 99, not {value}")
    choices = _CHOICES.get(name)
    if choices and str(value).lower() not in choices:
        named = join_alternatives([choice for choice in choices if choice])
        raise ConfigError(f"{name} must be {named}, not {value!r}")


def _parse_value(name: str, kind: type, text: str) -> object:
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if kind is float and name != "lookupd_poll_jitter":
        return parse_duration(text) / 1e9
    return kind(text)
