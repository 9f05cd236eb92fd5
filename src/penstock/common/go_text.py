"""A peer's bytes in error texts, as Go prints them with `%s` and `%q`.

Bytes that are not UTF-8 are carried in a `str` as `surrogateescape` characters, so that the error
frame repeats exactly the bytes received.
"""

__all__ = ["quoted", "to_bytes", "verbatim"]

_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}


def verbatim(raw: bytes) -> str:
    """The bytes as text (`%s`); `to_bytes` reverses it, also for invalid UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The bytes of a text that may contain the result of `verbatim`."""
    return text.encode("utf-8", "surrogateescape")


def quoted(raw: bytes) -> str:
    """The bytes in double quotes, escaped as by Go's `%q`."""
    return '"' + "".join(map(_escaped, verbatim(raw))) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    # Python and Go agree on what is printable: all but control characters, unassigned code points
    # and spaces other than the ASCII one.
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return rf"\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return rf"\x{code:02x}"
    return rf"\u{code:04x}" if code < 0x10000 else rf"\U{code:08x}"
