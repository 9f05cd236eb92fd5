"""JSON as Go's decoder reads it into a struct, and as its encoder writes one.

Clients have come to depend on it: names match in any case, of two with the same name the later
counts, null says nothing, an unknown name may hold anything, and a value of the wrong type spoils
the whole, even where a later one would have replaced it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

__all__ = [
    "Convert",
    "as_bool",
    "as_int32",
    "as_int64",
    "as_string",
    "read_fields",
    "write_fields",
]

# From what the JSON holds to what the field holds. Raises ValueError for a value of another type.
Convert: TypeAlias = Callable[[object], object]

# Go escapes these so that JSON may stand inside HTML and JavaScript.
_GO_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


class _Number:
    """A JSON number as it was written, since what it may be depends on the field."""

    __slots__ = ("literal",)

    def __init__(self, literal: str) -> None:
        self.literal = literal


def read_fields(body: bytes, fields: Mapping[str, Convert]) -> dict[str, Any]:
    """Those of `fields` that the object in `body` has. Raises ValueError if it is no such object,
    or a field is of the wrong type."""
    try:
        value = _parse_json(body)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if value is None:
        return {}
    if not isinstance(value, tuple):
        raise ValueError("not an object")
    return dict(_known_fields(value, fields))


def write_fields(value: Mapping[str, object]) -> bytes:
    """An object with these fields, in this order."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_GO_ESCAPES).encode("utf-8", "replace")


def as_string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    # What UTF-8 cannot hold, raw or escaped, is replaced as Go does: one mark for each byte.
    return re.sub("[\ud800-\udfff]", "\ufffd", value)


def as_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a bool")
    return value


def as_int64(value: object) -> int:
    return _int(value, bits=64)


def as_int32(value: object) -> int:
    return _int(value, bits=32)


def _parse_json(body: bytes) -> object:
    """Objects become tuples of pairs, so that repeated names are seen, and arrays become lists."""
    return json.loads(
        # Bytes that are not UTF-8 are allowed in strings: see `as_string`.
        body.decode("utf-8", "surrogateescape"),
        object_pairs_hook=tuple,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse,
    )


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _known_fields(
    pairs: tuple[tuple[str, object], ...], fields: Mapping[str, Convert]
) -> Iterator[tuple[str, object]]:
    for name, value in pairs:
        # Beside A to Z, Go folds two more letters: the Kelvin sign, and the long s.
        folded = name.lower().replace("\u017f", "s")
        convert = fields.get(folded)
        if convert is not None and value is not None:
            yield folded, convert(value)


def _int(value: object, bits: int) -> int:
    if not isinstance(value, _Number) or not re.fullmatch(r"-?[0-9]{1,19}", value.literal):
        raise ValueError("not an integer")
    number = int(value.literal)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"more than {bits} bits")
    return number
