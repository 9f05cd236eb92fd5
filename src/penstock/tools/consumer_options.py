"""Options shared by the consumer tools, and the option type of `--consumer-opt`.

Flags and defaults are NSQ's. There is no config file for them.
"""

from dataclasses import dataclass, replace

from penstock import NSQ_VERSION, __version__
from penstock.client import ClientConfig
from penstock.client.config import parse_option
from penstock.common.errors import ConfigError
from penstock.common.option_types import BOOL, INT, STRINGS
from penstock.common.options import check_values, option

__all__ = [
    "CLIENT_OPTIONS",
    "ConsumerOptions",
    "check_source",
    "client_config",
    "consumer_config",
]


def _parse_client_option(text: str) -> tuple[str, ...]:
    """Check one `name,value`. nsq compat: an unknown name is a usage error, exit code 2."""
    try:
        parse_option(text)
    except ConfigError as error:
        raise ValueError(error) from None
    return (text,)


CLIENT_OPTIONS = replace(STRINGS, parse=_parse_client_option)
"""The option type of `--consumer-opt` and `--producer-opt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options common to all consumer tools."""

    version: bool = option(False, BOOL, "print the version and exit", key=None)
    nsqd_tcp_address: tuple[str, ...] = option(
        (), STRINGS, "TCP address of an nsqd: host:port, or the path of a unix socket", key=None
    )
    lookupd_http_address: tuple[str, ...] = option(
        (),
        STRINGS,
        "HTTP address of an nsqlookupd that lists the nsqds: host:port or URL",
        key=None,
    )
    max_in_flight: int = option(
        200, INT, "maximum number of messages in flight", key=None, at_least=1
    )
    consumer_opt: tuple[str, ...] = option(
        (),
        CLIENT_OPTIONS,
        "client option of the consumer: name,value, or name alone for true",
        key=None,
    )


def check_source(options: ConsumerOptions) -> None:
    """Raises ConfigError unless the options name either nsqds or nsqlookupds, and are valid."""
    check_values(options)
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise ConfigError("--nsqd-tcp-address or --lookupd-http-address required")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise ConfigError("use --nsqd-tcp-address or --lookupd-http-address not both")
    consumer_config("", options)


def consumer_config(program: str, options: ConsumerOptions) -> ClientConfig:
    """The consumer's settings: `--consumer-opt`, and the flags that override it. Raises
    ConfigError."""
    given = (*options.consumer_opt, f"max_in_flight,{options.max_in_flight}")
    return client_config(program, "--consumer-opt", given)


def client_config(program: str, flag: str, given: tuple[str, ...]) -> ClientConfig:
    """Settings of a producer or a consumer. Raises ConfigError if two options conflict."""
    ours = ClientConfig(user_agent=f"{program}/{NSQ_VERSION} penstock/{__version__}")
    try:
        return ours.with_options(given)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None
