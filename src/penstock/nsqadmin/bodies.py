"""How the body of a message is shown: as JSON, as text, or as bytes. Pure.

What is returned is text, to be escaped by whoever puts it into a page.
"""

import base64
import binascii
from dataclasses import dataclass

import msgspec

__all__ = ["Shown", "shown"]

# What a page shows of one body; a megabyte of it would help nobody.
SHOWN_BYTES_MAX = 16 * 1024
PREVIEW_CHARS = 160

_BYTES_PER_LINE = 16
# Control characters that belong into a text.
_TEXT_CONTROLS = frozenset("\t\n\r")


@dataclass(frozen=True, slots=True)
class Shown:
    """A body, ready to be shown."""

    kind: str  # json, text, hex or empty
    size_bytes: int
    preview: str  # one line
    text: str
    is_cut: bool


def shown(body: str | None, body_base64: str | None) -> Shown:
    """A body as nsqd's lines have it: a text, or base64 of what is none."""
    if body is not None:
        return _shown_text(body)
    try:
        raw = base64.b64decode(body_base64 or "", validate=True)
    except binascii.Error:
        raw = (body_base64 or "").encode()
    return _shown_bytes(raw)


def _shown_text(body: str) -> Shown:
    raw = body.encode(errors="replace")
    if not body:
        return Shown("empty", 0, "", "", is_cut=False)
    if any(ord(char) < 32 and char not in _TEXT_CONTROLS for char in body[:SHOWN_BYTES_MAX]):
        return _shown_bytes(raw)
    pretty = _pretty(body)
    text = body if pretty is None else pretty
    preview = " ".join(body[: 2 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
    kind = "text" if pretty is None else "json"
    is_cut = len(text) > SHOWN_BYTES_MAX
    return Shown(kind, len(raw), preview, text[:SHOWN_BYTES_MAX], is_cut)


def _pretty(body: str) -> str | None:
    """Indented, if it is an object or an array of JSON's; every number keeps its digits. A bare
    number or word is shown as it came."""
    if body.lstrip()[:1] not in ("{", "[") or len(body) > 64 * SHOWN_BYTES_MAX:
        return None
    try:
        return msgspec.json.format(body, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return None


def _shown_bytes(raw: bytes) -> Shown:
    head = raw[: SHOWN_BYTES_MAX // 4]
    lines = [
        _hex_line(at, head[at : at + _BYTES_PER_LINE])
        for at in range(0, len(head), _BYTES_PER_LINE)
    ]
    preview = raw[:32].hex(" ")
    return Shown("hex" if raw else "empty", len(raw), preview, "\n".join(lines), raw != head)


def _hex_line(at: int, piece: bytes) -> str:
    readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
    return f"{at:08x}  {piece.hex(' '):<{3 * _BYTES_PER_LINE - 1}}  {readable}"
