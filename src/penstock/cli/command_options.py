"""What the subcommands of `penstock` have in common on their command lines.

Every address can be given by an environment variable too, so that a shell that works with one
cluster need say it only once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.common import names
from penstock.common.clock import SECOND_NS
from penstock.common.durations import format_duration, parse_duration
from penstock.common.errors import ConfigError

__all__ = [
    "CHANNEL",
    "DURATION",
    "LOG_POSITION",
    "NSQD_HTTP_ADDRESS",
    "NSQD_TCP_ADDRESS",
    "TOPIC",
    "CommandWithExamples",
    "DurationType",
    "HttpAccess",
    "LogPosition",
    "NameType",
    "client_options",
    "http_access",
    "http_addresses",
    "tcp_addresses",
    "token_headers",
]

NSQD_TCP_ADDRESS = "127.0.0.1:4150"
NSQD_HTTP_ADDRESS = "127.0.0.1:4151"

if TYPE_CHECKING:
    _DurationType = click.ParamType[float]
    _NameType = click.ParamType[str]
else:  # Older versions of click know it as no generic type.
    _DurationType = _NameType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


class CommandWithExamples(click.Command):
    """A command whose help ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")


class DurationType(_DurationType):
    """A positive time as Go writes it, `250ms` or `1m30s`, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
        try:
            duration_ns = parse_duration(value)
        except ValueError:
            self.fail(f"{value!r} is no duration, such as 250ms, 2s or 1m30s", param, ctx)
        if duration_ns <= 0:
            self.fail(f"{format_duration(duration_ns)} is not a positive duration", param, ctx)
        return duration_ns / SECOND_NS


DURATION = DurationType()


class NameType(_NameType):
    """A name that NSQ allows for a topic or a channel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        name = str(value)
        if not names.is_valid(name):
            self.fail(f"{name!r} is no name for a {self.name}", param, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Those that there are."""
        from penstock.cli.cluster_access import complete_channels, complete_topics  # noqa: PLC0415

        known = complete_topics if self.name == "topic" else complete_channels
        by_http = any("--nsqd-http-address" in each.opts for each in ctx.command.params)
        names = known(ctx.params, by_http=by_http)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TOPIC = NameType("topic")
CHANNEL = NameType("channel")


class LogPosition(_NameType):
    """A place in a topic's log, as nsqd takes it."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        from penstock.admin_api.seeking import absolute_position  # noqa: PLC0415

        try:
            return absolute_position(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


LOG_POSITION = LogPosition()


def http_addresses(command: F) -> F:
    """Which nsqds are asked over HTTP: `nsqds` and `lookupds`."""
    nsqd = click.option(
        "--nsqd-http-address",
        "nsqds",
        multiple=True,
        envvar="PENSTOCK_NSQD_HTTP_ADDRESS",
        metavar="HOST:PORT",
        help=f"An nsqd's HTTP address; may be repeated.  [default: {NSQD_HTTP_ADDRESS}]",
    )
    return nsqd(_lookupds(command))


def tcp_addresses(command: F) -> F:
    """Which nsqds are connected to: `nsqds` and `lookupds`."""
    nsqd = click.option(
        "--nsqd-tcp-address",
        "nsqds",
        multiple=True,
        envvar="PENSTOCK_NSQD_TCP_ADDRESS",
        metavar="HOST:PORT",
        help=f"An nsqd's TCP address; may be repeated.  [default: {NSQD_TCP_ADDRESS}]",
    )
    return nsqd(_lookupds(command))


def _lookupds(command: F) -> F:
    return click.option(
        "--lookupd-http-address",
        "lookupds",
        multiple=True,
        envvar="PENSTOCK_LOOKUPD_HTTP_ADDRESS",
        metavar="HOST:PORT",
        help="An nsqlookupd that knows the nsqds; may be repeated.",
    )(command)


def client_options(role: str) -> Callable[[F], F]:
    """Adds `--producer-opt` or `--consumer-opt`, as NSQ's own tools have it: `options`."""
    return click.option(
        f"--{role}-opt",
        "options",
        multiple=True,
        metavar="NAME,VALUE",
        callback=_checked_client_options,
        help=f"Set an option of the {role}, such as snappy or auth_secret,xyz; may be repeated.",
    )


def _checked_client_options(
    context: click.Context, parameter: click.Parameter, options: tuple[str, ...]
) -> tuple[str, ...]:
    from penstock.client.config import parse_option  # noqa: PLC0415 (loads the client)

    try:
        for option in options:
            parse_option(option)
    except ConfigError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return options


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What makes nsqds let us in over HTTP."""

    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What a request has to say."""
        return token_headers(self.token)


def http_access(command: F) -> F:
    """What nsqd's HTTP API may ask for: `access`."""

    @wraps(command)
    def with_access(
        *args: Any, token: str, tls_cert: str, tls_key: str, tls_root_ca_file: str, **kwargs: Any
    ) -> Any:
        access = HttpAccess(token, tls_cert, tls_key, tls_root_ca_file)
        return command(*args, access=access, **kwargs)

    options = (
        click.option(
            "--token",
            default="",
            envvar="PENSTOCK_HTTP_TOKEN",
            metavar="TOKEN",
            help="The bearer token that nsqd's API asks for; best set in $PENSTOCK_HTTP_TOKEN.",
        ),
        _file_option("--tls-cert", "The certificate to show to an nsqd that asks for one."),
        _file_option("--tls-key", "The key of --tls-cert, if that file has it not."),
        _file_option("--tls-root-ca-file", "Who vouches for nsqds, if not the system's CAs."),
    )
    wrapped: Callable[..., Any] = with_access
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _file_option(flag: str, text: str) -> Callable[[F], F]:
    variable = "PENSTOCK" + flag.removeprefix("-").replace("-", "_").upper()
    return click.option(flag, default="", envvar=variable, metavar="FILE", help=text)


def token_headers(token: str) -> list[tuple[str, str]]:
    """What a request has to say to be let in."""
    return [("Authorization", f"Bearer {token}")] if token else []
