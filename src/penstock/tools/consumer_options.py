"""The options that all consumer tools share, and the option type of `--consumer-opt`.

Flags and defaults are NSQ's. None of them can stand in a file.
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
    """nsq compat: an unknown option is an error of the command line, which exits with 2."""
    try:
        parse_option(text)
    except ConfigError as error:
        raise ValueError(error) from None
    return (text,)


CLIENT_OPTIONS = replace(STRINGS, parse=_parse_client_option)
"""The option type of `--consumer-opt` and `--producer-opt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a tool that consumes, before its own."""

    version: bool = option(False, BOOL, "print the version and exit", key=None)
    nsqd_tcp_address: tuple[str, ...] = option(
        (), STRINGS, "nsqd to consume from: host:port, or a unix socket's path", key=None
    )
    lookupd_http_address: tuple[str, ...] = option(
        (), STRINGS, "nsqlookupd that knows the nsqds to consume from: host:port or URL", key=None
    )
    max_in_flight: int = option(
        200, INT, "most messages to be sent before they are answered", key=None, at_least=1
    )
    consumer_opt: tuple[str, ...] = option(
        (), CLIENT_OPTIONS, "option of the consumer: name,value, or name alone for true", key=None
    )


def check_source(options: ConsumerOptions) -> None:
    """Raises ConfigError unless there is one kind of place to consume from, and all else fits."""
    check_values(options)
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise ConfigError("--nsqd-tcp-address or --lookupd-http-address required")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise ConfigError("use --nsqd-tcp-address or --lookupd-http-address not both")
    consumer_config("", options)


def consumer_config(program: str, options: ConsumerOptions) -> ClientConfig:
    """The settings of a consumer: `--consumer-opt`, and the flags that override it. Raises
    ConfigError."""
    given = (*options.consumer_opt, f"max_in_flight,{options.max_in_flight}")
    return client_config(program, "--consumer-opt", given)


def client_config(program: str, flag: str, given: tuple[str, ...]) -> ClientConfig:
    """The settings of a producer or a consumer. Raises ConfigError if two options contradict."""
    ours = ClientConfig(user_agent=f"{program}/{NSQ_VERSION} penstock/{__version__}")
    try:
        return ours.with_options(given)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None
