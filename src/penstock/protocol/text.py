"""How the bytes that a peer sent appear in the texts that it gets back.

The reference repeats a bad word as it came, and a bad name between quotes. A `str` carries any
bytes by the `surrogateescape` convention, so that the frame holds exactly the bytes received.
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
    """The bytes as they are; `to_bytes` gives them back, valid UTF-8 or not."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """What goes on the wire for a text made with `verbatim`."""
    return text.encode("utf-8", "surrogateescape")


def quoted(raw: bytes) -> str:
    """The bytes between double quotes, escaped as Go's `%q` does it."""
    return '"' + "".join(map(_escaped, verbatim(raw))) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    # Both agree on what is printable: everything but control characters, unassigned code points and
    # spaces other than the ASCII one.
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return rf"\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return rf"\x{code:02x}"
    return rf"\u{code:04x}" if code < 0x10000 else rf"\U{code:08x}"
