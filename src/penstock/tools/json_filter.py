"""The JSON filter of nsq_to_nsq: selects messages by a field, and fields by a whitelist. No I/O.

Values are passed on byte for byte.
"""

import re
from collections.abc import Sequence

import msgspec

from penstock.common.errors import Error

__all__ = ["JsonFilter", "NotJson", "Unfit"]

# An escape in a string; the group matches an unpaired surrogate.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)

# A number in Go's decimal notation. Python's also allows blanks and underscores.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class NotJson(Error):
    """The body is not a JSON object."""


class Unfit(Error):
    """The body is a JSON object without the field whose value is required."""


class JsonFilter:
    """Passes messages that have a field, or a value in it, with all or with whitelisted fields.

    null counts as an object without fields, as it does for Go's decoder.
    """

    def __init__(self, field: str = "", value: str = "", whitelist: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._number = _number(value)
        self._whitelist = sorted(set(whitelist))

    @property
    def passes_all(self) -> bool:
        """Whether messages need not be looked at."""
        return not self._field and not self._whitelist

    def filter(self, body: bytes) -> bytes | None:
        """The body to pass on; None if the message does not pass. Raises NotJson or Unfit."""
        if self.passes_all:
            return body
        fields = _fields(body)
        if self._field and not self._has_it(fields):
            return None
        return self._whitelisted(fields) if self._whitelist else body

    def _has_it(self, fields: dict[str, msgspec.Raw]) -> bool:
        if self._field not in fields:
            if self._value:
                raise Unfit(f"missing field {self._field!r} to check required value")
            return False
        if not self._value:
            return True
        raw = fields[self._field]
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            return value == self._value
        # nsq compat: numbers are compared as floats, and values of other kinds never match.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and _number(bytes(raw).decode()) == self._number

    def _whitelisted(self, fields: dict[str, msgspec.Raw]) -> bytes:
        passed = {name: fields[name] for name in self._whitelist if name in fields}
        return msgspec.json.encode(passed)


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of an object, with their values undecoded. Raises NotJson."""
    try:
        return _decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        return _decode(_without_lone_surrogates(body))
    except (ValueError, RecursionError):
        shown = body[:200].decode("utf-8", "replace")
        raise NotJson(f"Unable to decode json: {shown}") from None


def _decode(body: bytes) -> dict[str, msgspec.Raw]:
    if not body.isascii():
        # nsq compat: bytes that are not UTF-8 are replaced, and do not make the JSON invalid.
        body = body.decode("utf-8", "replace").encode()
    msgspec.json.decode(body)  # a Raw value is not checked
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw] | None) or {}


def _without_lone_surrogates(body: bytes) -> bytes:
    """nsq compat: Go's decoder replaces them, while ours refuses them."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], body)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
