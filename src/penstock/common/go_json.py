r"""JSON as Go's encoding/json writes it, byte for byte.

No spaces; keys in the order given; `<`, `>`, `&` and the two line separators that end a line of
JavaScript escaped; control characters as `\u00xx` (but for newline, return and tab); a float
without a fraction written as an integer, a very large or small one with an exponent.
"""

import math
import re
from decimal import Decimal

import msgspec

__all__ = ["to_json"]

# Safe to replace wherever they stand: outside of a string, JSON has none of them.
_ESCAPED = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)
# Matches every escape, so that the `b` after an escaped backslash is never taken for one.
_ANY_ESCAPE = re.compile(rb"\\(.)")
_LONG_ESCAPES = {b"b": rb"\u0008", b"f": rb"\u000c"}

_CONTAINERS = frozenset((dict, list, tuple))

# Go writes floats in these bounds without an exponent.
_PLAIN_FLOAT_MIN, _PLAIN_FLOAT_END = 1e-6, 1e21


def to_json(value: object) -> bytes:
    """`value`, of dicts, lists, tuples, strings, numbers, bools and None, as Go would write it."""
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
    """Looks before `_without_floats` copies: most answers are large and have none."""
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
            return msgspec.Raw(_float(value))
        case dict():
            return {key: _without_floats(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_floats(item) for item in value]
        case _:
            return value


def _float(value: float) -> bytes:
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
