"""Which messages pass, and what of them: for messages that are JSON. Pure.

A value is passed on byte for byte, whatever it is.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import Error

__all__ = ["JsonFilter", "NotJson", "Unfit"]


class NotJson(Error):
    """It is no JSON: nothing can be said of it."""


class Unfit(Error):
    """It is JSON, but not of the kind that was promised."""


class JsonFilter:
    """Passes messages that have a field, or a value in it; of these, all or certain fields."""

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
        """What is to be passed on; None if nothing is. Raises NotJson or Unfit."""
        if self.passes_all:
            return body
        fields = _fields(body)
        if self._field and not self._has_it(fields or {}):
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

    def _whitelisted(self, fields: dict[str, msgspec.Raw] | None) -> bytes:
        if fields is None:
            raise Unfit("json is not an object")
        passed = {name: fields[name] for name in self._whitelist if name in fields}
        return msgspec.json.encode(passed)


def _fields(body: bytes) -> dict[str, msgspec.Raw] | None:
    """None for what is JSON and no object. Raises NotJson."""
    if not body.isascii():
        # nsq compat: what is no UTF-8 is replaced, and does not make it less of a JSON.
        body = body.decode("utf-8", "replace").encode()
    try:
        decoded: Any = msgspec.json.decode(body)
        if not isinstance(decoded, dict):
            return None
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        shown = body[:200].decode("utf-8", "replace")
        raise NotJson(f"Unable to decode json: {shown}") from None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
