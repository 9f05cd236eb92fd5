"""Declaration of options, and everything derived from it.

The options of a program are a frozen, slotted dataclass whose fields are made by `option`:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class NsqdOptions:
        mem_queue_size: int = option(10_000, INT, "messages a channel keeps in memory", at_least=0)

This declares the flag `-mem-queue-size` in Go's syntax, the config key `mem_queue_size`, the
response of `GET /config/mem_queue_size`, the usage text, and a row of the page in `docs/`. The unit
in a field name (`msg_timeout_ns`) is not part of the flag (`-msg-timeout`).

A flag overrides the config file, which overrides the default.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from penstock import NSQ_VERSION, __version__
from penstock.common.errors import ConfigError, UsageError
from penstock.common.go_text import quoted, to_bytes
from penstock.common.option_types import OptionType, join_alternatives

__all__ = [
    "CommandLine",
    "Option",
    "check_values",
    "load_config",
    "markdown_page",
    "markdown_tables",
    "option",
    "option_value",
    "options_of",
    "parse_flags",
    "unknown_keys",
    "usage",
    "version_line",
]

T = TypeVar("T")


class Options(Protocol):
    """A dataclass of options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Generic[T]):
    """A declared option."""

    name: str
    flag: str
    key: str | None
    type: OptionType[T]
    help: str
    default: Callable[[], T]
    default_text: str | None
    at_least: T | None
    at_most: T | None
    choices: tuple[T, ...]


def option(
    default: T | Callable[[], T],
    type: OptionType[T],
    help: str,
    *,
    flag: str = "",
    key: str | None = "",
    default_text: str | None = None,
    at_least: T | None = None,
    at_most: T | None = None,
    choices: tuple[T, ...] = (),
) -> T:
    """Declare a field. `default` may be a function, if it depends on the machine; `default_text`
    then describes it. `key=None` excludes the option from files and `/config`.
    """
    declared = {
        "flag": flag,
        "key": key,
        "type": type,
        "help": help,
        "default_text": default_text,
        "at_least": at_least,
        "at_most": at_most,
        "choices": choices,
    }
    if callable(default):
        return field(default_factory=default, metadata=declared)
    return field(default=default, metadata=declared)


@cache
def options_of(cls: type[Options]) -> tuple[Option[Any], ...]:
    """The declared options, in order."""
    return tuple(map(_declared, fields(cls)))


def _declared(each: Field[Any]) -> Option[Any]:
    declared = dict(each.metadata)
    flag = declared.pop("flag") or each.name.removesuffix("_ns").replace("_", "-")
    key = declared.pop("key")
    value, factory = each.default, each.default_factory
    return Option(
        name=each.name,
        flag=flag,
        key=flag.replace("-", "_") if key == "" else key,
        default=factory if factory is not MISSING else lambda: value,
        **declared,
    )


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line: values by field name, and the arguments after the last flag."""

    values: dict[str, Any]
    rest: tuple[str, ...] = ()
    help_wanted: bool = False


def parse_flags(cls: type[Options], args: Sequence[str]) -> CommandLine:
    """Parse `args` as Go's flag package does. Raises UsageError with its texts.

    `-f` and `--f` are equivalent, and so are `-f v` and `-f=v`; a switch takes only `-f` or `-f=v`.
    The first argument that is not a flag ends the flags, and so does `--`.
    """
    by_flag = {declared.flag: declared for declared in options_of(cls)}
    values: dict[str, Any] = {}
    rest = list(args)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        argument = rest.pop(0)
        if argument == "--":
            break
        flag, has_value, text = _without_dashes(argument).partition("=")
        if flag in ("h", "help"):
            return CommandLine(values, tuple(rest), help_wanted=True)
        if flag not in by_flag:
            raise UsageError(f"flag provided but not defined: -{flag}")
        declared = by_flag[flag]
        if not has_value:
            text = "true" if declared.type.is_switch else _next_argument(flag, rest)
        value = _parse_flag(declared, text)
        if declared.type.join is not None and declared.name in values:
            value = declared.type.join(values[declared.name], value)
        values[declared.name] = value
    return CommandLine(values, tuple(rest))


def _without_dashes(argument: str) -> str:
    body = argument[2:] if argument.startswith("--") else argument[1:]
    if body[0] in "-=":
        raise UsageError(f"bad flag syntax: {argument}")
    return body


def _next_argument(flag: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"flag needs an argument: -{flag}")
    return rest.pop(0)


def _parse_flag(declared: Option[T], text: str) -> T:
    try:
        return declared.type.parse(text)
    except ValueError as error:
        what = "boolean value {} for -{}" if declared.type.is_switch else "value {} for flag -{}"
        raise UsageError(
            f"invalid {what.format(quoted(to_bytes(text)), declared.flag)}: {error}"
        ) from None


def load_config(cls: type[Options], path: str) -> dict[str, Any]:
    """Load the values in a TOML file, by field name. Raises ConfigError.

    Unknown keys are ignored, since several programs may share a file: see `unknown_keys`.
    """
    table = _read_toml(path)
    return {
        declared.name: _config_value(declared, table[declared.key], path)
        for declared in options_of(cls)
        if declared.key in table
    }


def unknown_keys(cls: type[Options], path: str) -> list[str]:
    """Keys in a TOML file that are not options, each with a similar option if there is one.
    Raises ConfigError."""
    from difflib import get_close_matches  # noqa: PLC0415 (most daemons have no config file)

    known = [declared.key for declared in options_of(cls) if declared.key is not None]
    unknown = []
    for key in _read_toml(path):
        if key not in known:
            meant = get_close_matches(key.replace("-", "_"), known, n=1)
            unknown.append(f"{key} (did you mean {meant[0]}?)" if meant else key)
    return unknown


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 (most daemons have no config file)

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"failed to load config file {path} - {reason}") from error


def _config_value(declared: Option[T], value: object, path: str) -> T:
    try:
        return declared.type.from_config(value)
    except ValueError as error:
        raise ConfigError(f"config file {path}: {declared.key} = {value!r}: {error}") from None


def check_values(options: Options) -> None:
    """Raises ConfigError for the first value that its option does not allow."""
    for declared in options_of(type(options)):
        value, low, high = getattr(options, declared.name), declared.at_least, declared.at_most
        if value is not None and (
            (low is not None and value < low)
            or (high is not None and value > high)
            or (declared.choices and value not in declared.choices)
        ):
            shown = declared.type.show(value)
            raise ConfigError(f"--{declared.flag} must be {_allowed(declared)}, not {shown}")


def _allowed(declared: Option[Any]) -> str:
    show, low, high = declared.type.show, declared.at_least, declared.at_most
    if declared.choices:
        return join_alternatives([show(choice) or "empty" for choice in declared.choices])
    if low is None:
        return ""
    return f"{show(low)} or more" if high is None else f"from {show(low)} to {show(high)}"


def option_value(options: Options, key: str) -> object:
    """The response of `GET /config/<key>`: a str to send unquoted, or a JSON value.

    Raises KeyError if there is no such option.
    """
    for declared in options_of(type(options)):
        if declared.key == key:
            return declared.type.to_json(getattr(options, declared.name))
    raise KeyError(key)


def version_line(program: str) -> str:
    """`nsqd v1.3.0 (built w/penstock0.1.0)`: the NSQ version we are compatible with, and ours."""
    return f"{program} v{NSQ_VERSION} (built w/penstock{__version__})"


def usage(cls: type[Options], program: str) -> str:
    """The text of `-help`."""
    lines = [f"Usage of {program}:"]
    for declared in sorted(options_of(cls), key=lambda declared: declared.flag):
        value = "" if declared.type.is_switch else f" {declared.type.placeholder}"
        has_default = declared.default_text or declared.default()
        default = f" (default {_default_text(declared)})" if has_default else ""
        lines += [f"  -{declared.flag}{value}", f"    \t{declared.help}{default}"]
    return "\n".join(lines) + "\n"


def _default_text(declared: Option[Any]) -> str:
    return declared.default_text or declared.type.show(declared.default())


def markdown_page(cls: type[Options], program: str) -> str:
    """The page of `docs/` with all options of a program."""
    rows = [f"| {' | '.join(_row(declared))} |" for declared in options_of(cls)]
    return _PAGE.format(program=program, rows="\n".join(rows))


def markdown_tables(tools: Mapping[str, type[Options]]) -> str:
    """The page of `docs/` with the options of the tools, which have no config file."""
    tables = []
    for name, cls in tools.items():
        rows = [f"| {' | '.join(_row(declared, has_key=False))} |" for declared in options_of(cls)]
        tables.append(_TABLE.format(program=name, rows="\n".join(rows)))
    return _TABLES_HEAD + "".join(tables)


def _row(declared: Option[Any], *, has_key: bool = True) -> tuple[str, ...]:
    default = _default_text(declared)
    return (
        f"`-{declared.flag}`",
        *([f"`{declared.key}`" if declared.key else ""] if has_key else []),
        ", ".join(filter(None, (declared.type.placeholder, _allowed(declared)))),
        default if declared.default_text else f"`{default}`" if default else "",
        declared.help,
    )


_PAGE = """\
# Options of {program}

Made by `make docs` from the declarations in the source: edit those.

Flags are written `-flag value` or `-flag=value`, with one dash or two; a bool is turned on by
`-flag` and off by `-flag=false`. The same options can be set in the TOML file that
`-config` names, under their config keys. In the file, a duration is a string (`"1m30s"`) or an
integer of milliseconds; a list is an array or a comma-separated string. A flag overrides the file,
and the file overrides the default.

| flag | config key | value | default | meaning |
|---|---|---|---|---|
{rows}
"""

_TABLES_HEAD = """\
# Options of the tools

Made by `make docs` from the declarations in the source: edit those.

Flags are written `-flag value` or `-flag=value`, with one dash or two; a bool is turned on by
`-flag` and off by `-flag=false`. [Tools](tools.md) describes each tool.
"""

_TABLE = """
## {program}

| flag | value | default | meaning |
|---|---|---|---|
{rows}
"""
