"""JSON that somebody else has written, read into a type of msgspec's.

What is malformed, of another type, not UTF-8 or nested too deep fails in three ways with msgspec;
here it is a ValueError, whose text is fit to be shown. It does not know who has sent it.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

__all__ = ["decode_json", "decode_json_by"]

T = TypeVar("T")


def decode_json(data: bytes, type: type[T]) -> T:
    """What `data` says. Raises ValueError."""
    return decode_json_by(msgspec.json.Decoder(type).decode, data)


def decode_json_by(decode: Callable[[bytes], T], data: bytes) -> T:
    """The same by a decoder that is at hand, of one value or of lines. Raises ValueError."""
    try:
        return decode(data)
    except UnicodeDecodeError:
        raise ValueError("JSON is malformed: not UTF-8") from None
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None
