"""Options and argument types shared by the subcommands of `penstock`.

Every address can also be set by an environment variable.
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
else:  # In older versions of click, ParamType is not generic.
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
    """A positive duration in Go's form, such as `250ms` or `1m30s`; converted to seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
        try:
            duration_ns = parse_duration(value)
        except ValueError:
            self.fail(f"{value!r} is not a duration such as 250ms, 2s or 1m30s", param, ctx)
        if duration_ns <= 0:
            self.fail(f"{format_duration(duration_ns)} is not a positive duration", param, ctx)
        return duration_ns / SECOND_NS


DURATION = DurationType()


class NameType(_NameType):
    """A valid name of a topic or a channel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        name = str(value)
        if not names.is_valid(name):
            self.fail(f"{name!r} is not a valid {self.name} name", param, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The existing topics or channels."""
        from penstock.cli.cluster_access import complete_channels, complete_topics  # noqa: PLC0415

        known = complete_topics if self.name == "topic" else complete_channels
        by_http = any("--nsqd-http-address" in each.opts for each in ctx.command.params)
        names = known(ctx.params, by_http=by_http)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TOPIC = NameType("topic")
CHANNEL = NameType("channel")


class LogPosition(_NameType):
    """A position in a topic's log: earliest, latest, sequence number with or without a log id, time
    or age."""

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

SEQ_WITHOUT_NODE = (
    "a sequence number requires a single node: select it with --nsqd-http-address, or add the log"
    " id, as penstock history prints it"
)
"""Error for a sequence number as a position if there are several nodes."""


def http_addresses(command: F) -> F:
    """Add the options for HTTP addresses: `nsqds` and `lookupds`."""
    nsqd = click.option(
        "--nsqd-http-address",
        "nsqds",
        multiple=True,
        envvar="PENSTOCK_NSQD_HTTP_ADDRESS",
        metavar="HOST:PORT",
        help=f"HTTP address of an nsqd; repeatable.  [default: {NSQD_HTTP_ADDRESS}]",
    )
    return nsqd(_lookupds(command))


def tcp_addresses(command: F) -> F:
    """Add the options for TCP addresses: `nsqds` and `lookupds`."""
    nsqd = click.option(
        "--nsqd-tcp-address",
        "nsqds",
        multiple=True,
        envvar="PENSTOCK_NSQD_TCP_ADDRESS",
        metavar="HOST:PORT",
        help=f"TCP address of an nsqd; repeatable.  [default: {NSQD_TCP_ADDRESS}]",
    )
    return nsqd(_lookupds(command))


def _lookupds(command: F) -> F:
    return click.option(
        "--lookupd-http-address",
        "lookupds",
        multiple=True,
        envvar="PENSTOCK_LOOKUPD_HTTP_ADDRESS",
        metavar="HOST:PORT",
        help="HTTP address of an nsqlookupd that lists the nsqds; repeatable.",
    )(command)


def client_options(role: str) -> Callable[[F], F]:
    """Add `--producer-opt` or `--consumer-opt`, as in NSQ's own tools: `options`."""
    return click.option(
        f"--{role}-opt",
        "options",
        multiple=True,
        metavar="NAME,VALUE",
        callback=_checked_client_options,
        help=f"Client option of the {role}, such as snappy or auth_secret,xyz; repeatable.",
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
    """Credentials for the HTTP API of nsqd."""

    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of a request."""
        return token_headers(self.token)


def http_access(command: F) -> F:
    """Add the options for the credentials: `access`."""

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
            help="Bearer token for nsqd's HTTP API; prefer $PENSTOCK_HTTP_TOKEN.",
        ),
        _file_option("--tls-cert", "Client certificate for nsqd (PEM)."),
        _file_option(
            "--tls-key", "Private key of --tls-cert (PEM).  [default: in the --tls-cert file]"
        ),
        _file_option(
            "--tls-root-ca-file", "CA bundle for verifying nsqd.  [default: the system's]"
        ),
    )
    wrapped: Callable[..., Any] = with_access
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _file_option(flag: str, text: str) -> Callable[[F], F]:
    variable = "PENSTOCK" + flag.removeprefix("-").replace("-", "_").upper()
    return click.option(flag, default="", envvar=variable, metavar="FILE", help=text)


def token_headers(token: str) -> list[tuple[str, str]]:
    """The Authorization header for a token; empty without a token."""
    return [("Authorization", f"Bearer {token}")] if token else []
