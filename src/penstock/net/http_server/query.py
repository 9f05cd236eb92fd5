"""The arguments of a request: its query string, read as Go's url.ParseQuery reads it."""

import re
from urllib.parse import unquote_to_bytes

__all__ = ["has_bad_escape", "parse_query"]

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def has_bad_escape(text: bytes) -> bool:
    """Whether a `%` in `text` is not followed by two hexadecimal digits."""
    return b"%" in text and _BAD_ESCAPE.search(text) is not None


def parse_query(raw: bytes) -> dict[str, str]:
    """The arguments by name; of a repeated one, the first. Raises ValueError for what Go refuses:
    a `;`, which some take for a separator and some do not, and an escape that is none.

    Bytes that are no UTF-8 are kept, as surrogates, so that no two arguments look the same.
    """
    if b";" in raw or has_bad_escape(raw):
        raise ValueError("undecodable query")
    args: dict[str, str] = {}
    for pair in raw.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            args.setdefault(_unescape(name), _unescape(value))
    return args


def _unescape(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "surrogateescape")
