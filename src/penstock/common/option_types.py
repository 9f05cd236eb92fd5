"""Types of option values, each with its syntax as a flag, in a TOML file and in `GET /config`.

Flags have the syntax of Go's flag package; TOML files allow more. Parsers raise only ValueError,
with a text that fits after a colon.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from penstock.common.clock import MILLISECOND_NS
from penstock.common.durations import format_duration, parse_duration
from penstock.common.logs import LogLevel

__all__ = [
    "BOOL",
    "DURATION",
    "FLOAT",
    "FLOATS",
    "INT",
    "LOG_LEVEL",
    "OPTIONAL_INT",
    "STRING",
    "STRINGS",
    "OptionType",
    "enum_type",
    "join_alternatives",
]

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=IntEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionType(Generic[T]):
    """Parsing and formatting of one type of value."""

    placeholder: str  # of the value in the usage text and the docs
    parse: Callable[[str], T]
    from_config: Callable[[object], T]
    show: Callable[[T], str] = str
    to_json: Callable[[T], object] = lambda value: value
    # A switch needs no value on the command line: `-f` means `-f=true`.
    is_switch: bool = False
    # For repeatable options: appends a further value.
    join: Callable[[T, T], T] | None = None


def enum_type(words: dict[str, EnumT], *, is_switch: bool = False) -> OptionType[EnumT]:
    """A number that is written as a word in any case; `/config` returns the number.

    If several words mean the same, the first is shown.
    """
    shown = {value: word for word, value in reversed(words.items())}

    def parse(text: str) -> EnumT:
        if text.lower() not in words:
            raise ValueError(
                f"must be {join_alternatives(list(dict.fromkeys(map(show, words.values()))))}"
            )
        return words[text.lower()]

    def from_config(value: object) -> EnumT:
        # TOML's `true` and `1` mean the same as the strings.
        return parse(str(value) if isinstance(value, (str, int)) else "")

    def show(value: EnumT) -> str:
        return shown[value]

    return OptionType(
        placeholder="word",
        parse=parse,
        from_config=from_config,
        show=show,
        to_json=int,
        is_switch=is_switch,
    )


def join_alternatives(words: list[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_BOOL_WORDS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


def _parse_bool(text: str) -> bool:
    if text not in _BOOL_WORDS:
        raise ValueError("parse error")
    return _BOOL_WORDS[text]


def _bool_from_config(value: object) -> bool:
    match value:
        case bool():
            return value
        case int():
            return value == 0  # nsq compat: an integer has the opposite meaning
        case str():
            return _parse_bool(value)
        case _:
            raise ValueError("must be true or false")


BOOL = OptionType(
    placeholder="bool",
    parse=_parse_bool,
    from_config=_bool_from_config,
    show=lambda value: "true" if value else "false",
    is_switch=True,
)


_INTEGER = re.compile(
    r"""[+-]?(
        0[xX](_?[0-9a-fA-F])+
      | 0[bB](_?[01])+
      | 0[oO](_?[0-7])+
      | (?P<octal>0(_?[0-7])+)
      | 0
      | [1-9](_?[0-9])*
    )""",
    re.VERBOSE | re.ASCII,
)


def _parse_int(text: str) -> int:
    number = _INTEGER.fullmatch(text)
    if number is None:
        raise ValueError("parse error")
    # In Go, unlike Python, a leading zero means octal.
    return _int64(int(text, 8 if number["octal"] else 0))


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ValueError("value out of range")
    return value


def _int_from_config(value: object) -> int:
    match value:
        case int() if not isinstance(value, bool):
            return _int64(value)
        case str() if re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII):
            return _int64(int(value))
        case _:
            raise ValueError("must be an integer")


INT = OptionType(placeholder="int", parse=_parse_int, from_config=_int_from_config)

OPTIONAL_INT: OptionType[int | None] = OptionType(
    placeholder="int", parse=_parse_int, from_config=_int_from_config
)
"""An INT whose default is None: the program chooses a value."""


def _parse_duration_flag(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("parse error") from None


def _duration_from_config(value: object) -> int:
    match value:
        case int() if not isinstance(value, bool):
            return _int64(value * MILLISECOND_NS)
        case str():
            return parse_duration(value)
        case _:
            raise ValueError("must be a duration such as 1m30s, or an integer of milliseconds")


DURATION = OptionType(
    placeholder="duration",
    parse=_parse_duration_flag,
    from_config=_duration_from_config,
    show=format_duration,
)


def _string_from_config(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


STRING = OptionType(placeholder="string", parse=str, from_config=_string_from_config)


def _strings_from_config(value: object) -> tuple[str, ...]:
    match value:
        case str():
            return tuple(value.split(","))
        case list() if all(isinstance(item, str) for item in value):
            return tuple(value)
        case _:
            raise ValueError("must be a list of strings")


STRINGS: OptionType[tuple[str, ...]] = OptionType(
    placeholder="string, repeatable",
    parse=lambda text: (text,),
    from_config=_strings_from_config,
    show=", ".join,
    to_json=list,
    join=lambda so_far, more: so_far + more,
)


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


def _float_from_config(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return float(value)


FLOAT = OptionType(placeholder="float", parse=_parse_float, from_config=_float_from_config)


def _floats(values: list[str]) -> tuple[float, ...]:
    return tuple(sorted(map(float, values), reverse=True))


def _parse_floats(text: str) -> tuple[float, ...]:
    try:
        return _floats(text.split(","))
    except ValueError:
        raise ValueError("parse error") from None


def _floats_from_config(value: object) -> tuple[float, ...]:
    match value:
        case str():
            return _parse_floats(value)
        case list() if all(type(item) in (int, float) for item in value):
            return _floats(value)
        case _:
            raise ValueError("must be a list of numbers")


FLOATS: OptionType[tuple[float, ...]] = OptionType(
    placeholder="float, repeatable",
    parse=_parse_floats,
    from_config=_floats_from_config,
    show=lambda values: ", ".join(map(str, values)),
    to_json=list,
    join=lambda so_far, more: tuple(sorted(so_far + more, reverse=True)),
)

LOG_LEVEL = enum_type({level.name.lower(): level for level in LogLevel})
