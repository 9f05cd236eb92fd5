r"""JSON as Go's encoding/json writes and reads it, and typed decoding of other JSON.

`to_json` writes the same bytes as Go: no spaces; keys in the given order; `<`, `>`, `&`, U+2028 and
U+2029 escaped; control characters as `\u00xx` (except newline, return and tab); a float without
fraction as an integer, very large or small ones with an exponent.

`read_fields` reads an object as Go reads it into a struct, on which clients depend: names match in
any case, the last of two equal names counts, null leaves a field unset, unknown names are ignored,
and a value of a wrong type is an error even if a later one replaces it.

`decode_json` reads JSON from other programs into a type with msgspec.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

__all__ = [
    "Convert",
    "as_bool",
    "as_int32",
    "as_int64",
    "as_string",
    "decode_json",
    "decode_json_with",
    "read_fields",
    "to_json",
]

T = TypeVar("T")

# Writing ------------------------------------------------------------------------------------------

# These occur only inside strings, so that they can be replaced in the whole text.
_ESCAPED = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)
# Matches every escape, so that a `b` after an escaped backslash is not taken for one.
_ANY_ESCAPE = re.compile(rb"\\(.)")
_LONG_ESCAPES = {b"b": rb"\u0008", b"f": rb"\u000c"}

_CONTAINERS = frozenset((dict, list, tuple))

# Go writes floats in these bounds without an exponent.
_PLAIN_FLOAT_MIN, _PLAIN_FLOAT_END = 1e-6, 1e21


def to_json(value: object) -> bytes:
    """Write a value of dicts, lists, tuples, strings, numbers, bools and None as Go does."""
    if _has_float(value):
        value = _without_floats(value)
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_without_surrogates(value))
    if b"\\" in text:
        text = _ANY_ESCAPE.sub(_escape, text)
    for plain, escaped in _ESCAPED:
        text = text.replace(plain, escaped)
    return text


def _escape(match: re.Match[bytes]) -> bytes:
    return _LONG_ESCAPES.get(match[1], match[0])


def _has_float(value: object) -> bool:
    """Saves the copy that `_without_floats` makes: most values are large and have no float."""
    if not isinstance(value, dict | list | tuple):
        return isinstance(value, float)
    for item in value.values() if isinstance(value, dict) else value:
        kind = type(item)
        if kind is float or (kind in _CONTAINERS and _has_float(item)):
            return True
    return False


def _without_floats(value: object) -> object:
    match value:
        case float():
            return msgspec.Raw(_format_float(value))
        case dict():
            return {key: _without_floats(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_floats(item) for item in value]
        case _:
            return value


def _format_float(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    shortest = Decimal(repr(value))
    if value == 0 or _PLAIN_FLOAT_MIN <= abs(value) < _PLAIN_FLOAT_END:
        plain = format(shortest, "f")
        return (plain.rstrip("0").rstrip(".") if "." in plain else plain).encode()
    digits, _, exponent = format(shortest.normalize(), "e").partition("e")
    return f"{digits}e{exponent}".encode()


def _without_surrogates(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


# Reading into a struct ----------------------------------------------------------------------------

# Converts a JSON value to the type of a field. Raises ValueError for a value of another type.
Convert: TypeAlias = Callable[[object], object]


class _Number:
    """A JSON number as text: the field determines which numbers are allowed."""

    __slots__ = ("literal",)

    def __init__(self, literal: str) -> None:
        self.literal = literal


def read_fields(body: bytes, fields: Mapping[str, Convert]) -> dict[str, Any]:
    """The fields that the object in `body` contains. Raises ValueError if it is not an object or a
    field has a wrong type."""
    try:
        value = _parse_json(body)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if value is None:
        return {}
    if not isinstance(value, tuple):
        raise ValueError("not an object")
    return dict(_known_fields(value, fields))


def as_string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    # As in Go, each invalid byte and each lone surrogate becomes U+FFFD.
    return re.sub("[\ud800-\udfff]", "\ufffd", value)


def as_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a bool")
    return value


def as_int64(value: object) -> int:
    return _parse_int(value, bits=64)


def as_int32(value: object) -> int:
    return _parse_int(value, bits=32)


def _parse_json(body: bytes) -> object:
    """Objects become tuples of pairs, to keep repeated names; arrays become lists."""
    return json.loads(
        # Bytes that are not UTF-8 are allowed in strings: see `as_string`.
        body.decode("utf-8", "surrogateescape"),
        object_pairs_hook=tuple,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_reject_constant,
    )


def _reject_constant(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _known_fields(
    pairs: tuple[tuple[str, object], ...], fields: Mapping[str, Convert]
) -> Iterator[tuple[str, object]]:
    for name, value in pairs:
        # Besides A to Z, Go folds the Kelvin sign and the long s.
        folded = name.lower().replace("\u017f", "s")
        convert = fields.get(folded)
        if convert is not None and value is not None:
            yield folded, convert(value)


def _parse_int(value: object, bits: int) -> int:
    if not isinstance(value, _Number) or not re.fullmatch(r"-?[0-9]{1,19}", value.literal):
        raise ValueError("not an integer")
    number = int(value.literal)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"more than {bits} bits")
    return number


# Typed decoding -----------------------------------------------------------------------------------


def decode_json(data: bytes, type: type[T]) -> T:
    """Decode JSON of another program into a type. Raises ValueError with a text for the user."""
    return decode_json_with(msgspec.json.Decoder(type).decode, data)


def decode_json_with(decode: Callable[[bytes], T], data: bytes) -> T:
    """Call a msgspec decoder (of one value or of lines). Raises ValueError for all bad input."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise ValueError("JSON is malformed: not UTF-8") from None
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None
