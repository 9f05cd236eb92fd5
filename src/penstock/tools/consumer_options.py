"""What the tools that consume can all be told: where from, and how.

Flags and defaults are NSQ's. None of them can stand in a file.
"""

from dataclasses import dataclass

from penstock import NSQ_VERSION, __version__
from penstock.client import ClientConfig
from penstock.errors import ConfigError
from penstock.option_kinds import BOOL, INT, STRINGS
from penstock.options import check_values, option

__all__ = ["ConsumerOptions", "check_source", "client_config", "consumer_config"]


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
        (), STRINGS, "option of the consumer: name,value, or name alone for true", key=None
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
    """As `--consumer-opt` says, but for what has a flag of its own. Raises ConfigError."""
    given = (*options.consumer_opt, f"max_in_flight,{options.max_in_flight}")
    return client_config(program, "--consumer-opt", given)


def client_config(program: str, flag: str, given: tuple[str, ...]) -> ClientConfig:
    """The settings of a producer or a consumer of ours. Raises ConfigError."""
    ours = ClientConfig(user_agent=f"{program}/{NSQ_VERSION} penstock/{__version__}")
    try:
        return ours.with_options(given)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None
